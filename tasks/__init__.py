"""What is done, by domain: pure kernels, and thin Prefect steps beside them in `steps.py`."""
