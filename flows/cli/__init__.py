"""Implement the command line: arguments, configuration files, progress, rendering."""
