"""Run one local Prefect server: in the background (up, status, down), or embedded in a run."""
