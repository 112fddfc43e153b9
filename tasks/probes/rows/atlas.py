"""Turn RIPE Atlas ping results into measurements: one for each reply, and for each that did not come.

The format is described at https://atlas.ripe.net/docs/apis/result-format, for each firmware version. A result has
`type` or `msm_name` "ping", the probe's address `src_addr` (`srcaddr` before firmware 4460), the target's
`dst_addr` (`addr`), its family `af`, the time `timestamp` in seconds, and a list `result` with an element for each
packet. All replies of a result have its time. An element with `rtt` is a reply (also a duplicate, which has
`dup`); one with `x` was lost and one with `error` failed, so both have the round trip -1. A reply may have a source
address of its own. Results of firmware 1 have no list, only an average.

What cannot be used is a fault: `not_ping`, `no_replies` for the result as a whole, `bad_reply` for an element. A
result without addresses, such as one whose name was not resolved, is told by its null address in `screening`.
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
    target = result.get("dst_addr", result.get("addr"))
    probe = _source(result, source)
    for number, reply in enumerate(listed, start=1):
        if not isinstance(reply, dict) or not reply.keys() & {"rtt", "x", "error"}:
            yield number, RowFault("bad_reply", f"neither rtt, x nor error: {reply!r}"[:200])
            continue
        rtt = reply.get("rtt", FAILED)
        own = _source(reply, source) if source == _DEFAULT_SOURCE else None
        yield number, (time, own or probe, target, version, rtt)


def _source(found: Mapping[str, Any], field: str) -> Any:
    value = found.get(field)
    return found.get("srcaddr") if value is None and field == _DEFAULT_SOURCE else value
