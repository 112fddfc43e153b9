"""Packed shards: one module a format and direction, and the rules that a bin keeps."""
