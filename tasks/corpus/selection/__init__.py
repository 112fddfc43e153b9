"""Decide which documents a sample contains: hash row ids, find the cutoff."""
