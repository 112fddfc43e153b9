"""Performance against the simple way to do the same; `python -m benchmarks` runs everything."""
