"""The command line: arguments, configuration files, progress, rendering."""
