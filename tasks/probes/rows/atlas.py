"""Turn RIPE Atlas ping results into measurements: one for each reply, and for each that did not come.

The format is described at https://atlas.ripe.net/docs/apis/result-format, for each firmware version. A result has
`type` or `msm_name` "ping", the probe's address `src_addr` (`srcaddr` before firmware 4460), the target's
`dst_addr` (`addr`), its family `af`, the time `timestamp` in seconds, and a list `result` with an element for each
packet. All replies of a result have its time. An element with `rtt` is a reply (also a duplicate, which has
`dup`); one with `x` was lost and one with `error` failed, so both have the round trip -1. A reply may have a source
address of its own; if the result has none, the first of these stands for it. Results of firmware 1 have no list,
only an average.

What cannot be used is a fault: `not_ping`, `no_replies` for the result as a whole, `bad_reply` for an element. A
result without addresses, such as one whose name was not resolved, has a null address, which `screening` rejects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tasks.inputs.readers import RowFault

FAILED = -1.0
_DEFAULT_SOURCE = "src_addr"

# The values of a row in the order of `INPUT_COLUMNS`.
Values = tuple[Any, Any, Any, Any, Any]


def replies(
    result: Mapping[str, Any], source: str = _DEFAULT_SOURCE
) -> Iterator[tuple[int, Values | RowFault]]:
    """Yield each reply of a result with its number, from 1; 0 for a fault of the whole result.

    Args:
        result: one object of the results that RIPE Atlas returns.
        source: field with the probe's address: `src_addr`, or `from` for the address that RIPE sees.

    >>> result = {"type": "ping", "af": 4, "src_addr": "192.0.2.1", "dst_addr": "198.51.100.7", "timestamp": 5}
    >>> list(replies({**result, "result": [{"rtt": 1.5}, {"x": "*"}]}))
    [(1, (5, '192.0.2.1', '198.51.100.7', 4, 1.5)), (2, (5, '192.0.2.1', '198.51.100.7', 4, -1.0))]
    """
    kind = result.get("type", result.get("msm_name", "ping"))
    if not isinstance(kind, str) or kind.lower() != "ping":
        yield 0, RowFault("not_ping", f"the result is of type {kind!r}"[:80])
        return
    listed = result.get("result")
    if not isinstance(listed, list) or not listed:
        yield 0, RowFault("no_replies", "the result lists no replies")
        return
    time, version = result.get("timestamp"), result.get("af")
    target = _first(result, "dst_addr", "addr")
    fields = ("src_addr", "srcaddr") if source == _DEFAULT_SOURCE else ()
    own = [_first(reply, *fields) if isinstance(reply, dict) else None for reply in listed]
    probe = _first(result, *(fields or (source,)))
    if probe is None:
        probe = next((address for address in own if address is not None), None)
    for number, reply in enumerate(listed, start=1):
        if not isinstance(reply, dict) or not reply.keys() & {"rtt", "x", "error"}:
            yield number, RowFault("bad_reply", f"neither rtt, x nor error: {reply!r}"[:200])
            continue
        rtt = reply.get("rtt", FAILED)
        address = own[number - 1]
        yield number, (time, probe if address is None else address, target, version, rtt)


def _first(found: Mapping[str, Any], *fields: str) -> Any:
    """Return the first value that is not null."""
    return next((value for field in fields if (value := found.get(field)) is not None), None)
