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

import errno
import os
import re
from typing import Any

# What may precede the last `@` of a word: `user:password` after a scheme, which `Path` leaves one slash; a password
# may contain `/` and `@`. Digits up to a slash are a port. Schemes of any length would take time that is quadratic.
_PASSWORD = re.compile(r"(?i)([a-z][a-z0-9+.-]{0,30}:/{1,2})[^/:@]*:(?!\d+[/?#])")
# A user alone is a secret only on the web: object stores write `container@account`.
_USER = re.compile(r"(?i)\b(https?:/{1,2})[^/:@]+@")
_SPACES = re.compile(r"(\s+)")

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")

USER_INFO = "secret_in_uri"
USER_INFO_REMEDY = (
    "this URI contains a user name or password, which would be stored and shown; leave it out, and give it in the "
    "environment or the configuration file of the client of that service"
)

# What to do when the system refuses, by its error number.
_NOT_LOADED = "failed to map segment"
_REMEDIES = {
    errno.EMFILE: "too many files are open at once: raise the limit (ulimit -n 4096), or lower workers",
    errno.ENFILE: "too many files are open on this machine: end other programs, or lower workers",
    errno.EFBIG: "this process or file system allows no file this large: lift the limit (ulimit -f unlimited)",
    errno.ENAMETOOLONG: "the system takes no name or path this long: use a shorter output_dir or name",
    errno.ENOSPC: "the disk is full: free some space, or choose another output_dir",
    errno.EDQUOT: "your quota is used up: free some space, or choose another output_dir",
    errno.ENOMEM: "there is not enough memory: lower workers, or end other programs",
}


def without_secrets(text: str) -> str:
    """Return a text whose URIs have neither user names nor passwords.

    >>> without_secrets("no server at http://user:secret@127.0.0.1:4200/api; start it")
    'no server at http://***@127.0.0.1:4200/api; start it'
    """
    if "@" not in text:
        return text
    return "".join(_without_secret(word) if "@" in word else word for word in _SPACES.split(text))


def _without_secret(word: str) -> str:
    end = word.rindex("@") + 1
    found = _PASSWORD.search(word, 0, end)
    if found:
        word = f"{word[: found.end(1)]}***@{word[end:]}"
    return _USER.sub(r"\1***@", word)


def _on_one_line(text: str) -> str:
    """Return a text without line breaks, and with control characters written out: data must not control a terminal.

    >>> _on_one_line("a\\nb\\x1b[31m")
    'a b\\\\x1b[31m'
    """
    if text.isprintable():
        return text
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], " ".join(text.splitlines()))


def has_secret(text: str) -> bool:
    """Return whether a text has a URI with a user name and a password, or a token of the web.

    >>> has_secret("s3://key:secret@bucket"), has_secret("abfs://container@account.dfs.core.windows.net")
    (True, False)
    """
    return without_secrets(text) != text


def remedy(error: OSError | str, otherwise: str = "") -> str:
    """Return why the system refused and what to do, for the end of a message.

    Args:
        error: what the system said; as text if native code passes it on.
        otherwise: what to do if the error is none of the limits of process, disk or file system.

    >>> remedy("mmap: Cannot allocate memory", "try again")
    'mmap: Cannot allocate memory; there is not enough memory: lower workers, or end other programs'
    """
    if isinstance(error, str):
        reason = error
        known = next((what for number, what in _REMEDIES.items() if os.strerror(number) in error), otherwise)
    else:
        reason = error.strerror or str(error)
        known = _REMEDIES.get(error.errno or 0, otherwise)
    return f"{reason}; {known}" if known else reason


class GristmillError(Exception):
    """Base class of all errors that Gristmill raises on purpose.

    User names and passwords in URIs are left out of the message and the place, and both are one line.

    Args:
        message: what failed, the value, what is allowed and what to do, in one or two sentences.
        code: stable identifier for scripts, `snake_case`.
        where: `file:row`, a path, or a configuration path such as `datasets[2].weight`.
    """

    exit_code = 1
    default_code = "error"

    def __init__(self, message: str, *, code: str | None = None, where: str = "") -> None:
        # Here, because every error is printed, logged or stored by someone.
        self.message = _on_one_line(without_secrets(message))
        super().__init__(self.message)
        self.code = code or self.default_code
        self.where = _on_one_line(without_secrets(where))

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


def refuse_secrets(text: str, where: str) -> None:
    """Refuse a URI that contains a user name and a password.

    Raises:
        ConfigError: `secret_in_uri`.
    """
    if has_secret(text):
        raise ConfigError(USER_INFO_REMEDY, code=USER_INFO, where=where)


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


def system_error(error: Exception) -> GristmillError | None:
    """Convert an error of the system that no reader or writer expected; `None` if it is not about a limit.

    >>> system_error(ImportError("lib.so: failed to map segment from shared object")).code
    'limit'
    """
    if isinstance(error, OSError):
        if error.errno not in _REMEDIES:
            return None
        return StorageError(remedy(error), code="limit", where=str(error.filename or ""))
    # The loader of libraries says so where there is not enough memory for one.
    if isinstance(error, MemoryError) or (isinstance(error, ImportError) and _NOT_LOADED in str(error)):
        return StorageError(remedy(OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))), code="limit")
    return None


class IntegrityError(GristmillError):
    """A total does not add up, too much was rejected, the run drifted, or validation found a broken row."""

    exit_code = 3
    default_code = "integrity"
