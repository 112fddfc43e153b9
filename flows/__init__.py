"""One file a flow; each tells its story in the order the work happens."""

from gristmill_command import require_own

require_own("schemas", "tasks")
