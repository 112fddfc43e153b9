"""The error tree: every failure a user can meet has a stable code, a place, the value and a remedy.

An error's class decides the exit code of the command line:

=====================  =========  ==================================================
class                  exit code  meaning
=====================  =========  ==================================================
`ConfigError`          2          bad configuration, usage, missing path
`MissingExtraError`    2          an optional package is not installed
`InputError`           1          an input file cannot be read
`StorageError`         1          the output cannot be written
`WorkError`            1          the job itself failed
`IntegrityError`       3          ledger, reject limit, drift, validation
=====================  =========  ==================================================
"""

from __future__ import annotations

from typing import Any


class GristmillError(Exception):
    """Base class of all errors that Gristmill raises on purpose.

    Args:
        message: what failed, the value, what is allowed and what to do, in one or two sentences.
        code: stable identifier for scripts, `snake_case`.
        where: `file:row`, a path, or a configuration path such as `datasets[2].weight`.
    """

    exit_code = 1
    default_code = "error"

    def __init__(self, message: str, *, code: str | None = None, where: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.where = where

    def __str__(self) -> str:
        place = f" {self.where}:" if self.where else ""
        return f"[{self.code}]{place} {self.message}"

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions cross process boundaries; the default reduction would lose the keyword arguments.
        return (_rebuild, (type(self), self.message, self.code, self.where))

    def as_dict(self) -> dict[str, str]:
        """Return the error as the command line prints it under `--json`."""
        return {"code": self.code, "message": self.message, "where": self.where}


def _rebuild(cls: type[GristmillError], message: str, code: str, where: str) -> GristmillError:
    return cls(message, code=code, where=where)


class ConfigError(GristmillError):
    """The configuration, the command line or a path in it is wrong."""

    exit_code = 2
    default_code = "bad_config"


class MissingExtraError(ConfigError):
    """An optional dependency is needed but not installed."""

    default_code = "missing_extra"

    @classmethod
    def of(cls, package: str, extra: str, purpose: str) -> MissingExtraError:
        """Build the standard error: what needs which package, and how to install it."""
        return cls(
            f"{purpose} needs the package {package!r}; install it with: pip install 'gristmill[{extra}]'"
        )


class InputError(GristmillError):
    """An input file cannot be read as the format it claims to have."""

    default_code = "bad_input"


class StorageError(GristmillError):
    """The output could not be written or found."""

    default_code = "storage"


class WorkError(GristmillError):
    """A job failed for a reason that is neither input nor storage."""

    default_code = "work_failed"


class IntegrityError(GristmillError):
    """A total does not add up, too much was rejected, the run drifted, or validation found a broken row."""

    exit_code = 3
    default_code = "integrity"
