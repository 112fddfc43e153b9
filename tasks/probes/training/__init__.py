"""Turn probe rows into training data: source, sampler, tokens, crops, loader."""
