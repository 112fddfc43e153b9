"""Generate data for the demonstration, from the Python installation it runs on."""
