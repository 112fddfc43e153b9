"""Packed shards: one module per format and direction, and the invariants of bins."""
