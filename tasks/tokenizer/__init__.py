"""train-tokenizer: train a tokenizer on a sample."""
