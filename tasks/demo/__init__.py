"""Data for the demonstration, made from the Python installation it runs on."""
