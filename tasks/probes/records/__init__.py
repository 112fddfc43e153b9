"""Encode and decode the records of probe rows, and store them in ArrayRecord files."""
