"""A chat row to tokens and a loss mask."""
