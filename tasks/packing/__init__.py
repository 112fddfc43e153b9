"""Bins from lengths, and the array kernels around them: pure, shared by pack-sft and the loader of probe rows."""
