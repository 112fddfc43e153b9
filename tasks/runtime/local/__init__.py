"""One local Prefect server: in the background with a worker, or embedded in a run."""
