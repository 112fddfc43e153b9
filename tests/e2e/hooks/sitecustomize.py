"""Writes down attempts to reach beyond this computer; see `tests/e2e/egress.py`."""

from __future__ import annotations

import os
import sys

_LOG = os.environ.get("GRISTMILL_TEST_CONNECTIONS")
_EVENTS = ("socket.connect", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname")
_NEAR = ("127.", "::1", "localhost", "0.0.0.0", "::ffff:127.")  # noqa: S104


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    if event not in _EVENTS:
        return
    # A socket and an address, or a host and more.
    target = arguments[1] if event in _EVENTS[:2] else arguments[0]
    host = target[0] if isinstance(target, tuple) else target
    if isinstance(host, bytes):
        host = host.decode(errors="replace")
    # Unix sockets are paths or, in the abstract namespace, begin with a null; `None` is this computer.
    if not isinstance(host, str) or host.startswith(("/", "\0", *_NEAR)) or not host:
        return
    line = f"{event} {target!r} by {os.getpid()} {' '.join(sys.argv[:3])}\n"
    descriptor = os.open(str(_LOG), os.O_WRONLY | os.O_APPEND)
    os.write(descriptor, line.encode())
    os.close(descriptor)


if _LOG:
    sys.addaudithook(_hook)
