"""Chat data to packed shards: rendering, loss masks, packing, writing, validation."""
