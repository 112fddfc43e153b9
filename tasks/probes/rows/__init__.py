"""Measurements as rows: read, screened, sorted, and spilled in the order of their probes."""
