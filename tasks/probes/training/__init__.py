"""From probe rows to a trainer: source, sampler, tokens, crops, loader."""
