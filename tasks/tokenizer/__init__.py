"""train-tokenizer: a byte-level BPE tokenizer from a sample."""
