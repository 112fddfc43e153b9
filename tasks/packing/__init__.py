"""Bins from lengths: pure kernels, shared by pack-sft and the loader of probe rows."""
