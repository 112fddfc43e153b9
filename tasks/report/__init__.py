"""Compose the report of a run once, and render it as a page and as Prefect artifacts."""
