"""What is done, by domain: pure kernels, and thin Prefect steps beside them in `steps.py`."""

from gristmill_command import require_own

require_own("schemas")
