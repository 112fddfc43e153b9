"""Read, screen and sort measurements as rows, and derive what their addresses decide."""
