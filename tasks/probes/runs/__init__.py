"""Sorted runs of measurements, between the pass that reads the input and the pass that writes records."""
