"""Which documents a sample holds: hashes of row ids, the cutoff, the shards."""
