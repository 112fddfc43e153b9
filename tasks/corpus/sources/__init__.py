"""Look into source files: what is in them, and which of their rows are wanted."""
