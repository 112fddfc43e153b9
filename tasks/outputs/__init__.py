"""Validate, inspect, convert and query the outputs of Gristmill or other tools, across all domains."""
