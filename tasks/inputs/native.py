"""Make panics of native code errors of Python."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

# Rust reads it at the first panic, and prints one line. A panic is an error with a name here, or costs a row.
os.environ["RUST_BACKTRACE"] = "0"


class NativePanicError(Exception):
    """Code in Rust panicked."""


@contextmanager
def panics_are_errors() -> Iterator[None]:
    """Turn a panic into an `Exception`.

    What pyo3 raises for a panic is none, so that it would pass for an interrupt. Its class cannot be imported.

    Raises:
        NativePanicError: the block panicked.
    """
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise NativePanicError(f"the tokenizer panicked: {error}") from None
