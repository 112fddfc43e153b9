"""Hold one file for each flow; each reads in the order in which the work happens."""

from gristmill_command import require_own

require_own("schemas", "tasks")
