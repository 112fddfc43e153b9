"""The order of positions: where conversations lie, and how splits and shards are cut from it."""
