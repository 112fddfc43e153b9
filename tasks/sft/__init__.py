"""Pack chat data into shards: rendering, loss masks, packing, writing, validation."""
