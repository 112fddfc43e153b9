"""train-tokenizer: train a byte-level BPE tokenizer on a sample."""
