"""Fifty RIPE Atlas results as their API returns them, and what is in them, read with plain Python."""

from __future__ import annotations

import datetime
import random
from collections import Counter
from typing import Any

import numpy as np

PROBES = {4: ["192.168.10.6", "185.34.2.114", "172.18.1.17"], 6: ["2001:db8:33::5", "2a00:1450:400c:c00::1"]}
TARGETS = {4: "203.119.111.139", 6: "2001:7fd::1"}
SECOND = 1_599_523_340


def ping(number: int, rng: random.Random) -> dict[str, Any]:
    """A ping result of firmware 5080, with losses, errors and duplicates now and then."""
    af = 6 if rng.random() < 0.4 else 4
    probe = rng.randrange(len(PROBES[af]))
    replies: list[dict[str, Any]] = []
    for _ in range(3):
        fate = rng.random()
        if fate < 0.15:
            replies.append({"x": "*"})
        elif fate < 0.2:
            replies.append({"error": "sendto failed: Network is unreachable"})
        else:
            replies.append({"rtt": round(rng.lognormvariate(3, 1), 6)})
            if fate < 0.27:
                replies.append({"rtt": round(rng.lognormvariate(4, 1), 6), "dup": 1, "ttl": 51})
    rtts = [reply["rtt"] for reply in replies if "rtt" in reply and "dup" not in reply]
    time = SECOND + 240 * (number // 4) + rng.randrange(4)
    return {
        "fw": 5080, "mver": "2.6.2", "lts": rng.randrange(90), "dst_name": f"target{af}.example", "af": af,
        "dst_addr": TARGETS[af], "src_addr": PROBES[af][probe], "proto": "ICMP", "ttl": 55, "size": 48,
        "result": replies, "dup": sum("dup" in reply for reply in replies), "rcvd": len(rtts), "sent": 3,
        "min": min(rtts, default=-1), "max": max(rtts, default=-1),
        "avg": round(sum(rtts) / len(rtts), 10) if rtts else -1, "msm_id": 1001 + af, "prb_id": 100 * af + probe,
        "timestamp": time, "msm_name": "Ping", "from": f"198.51.100.{probe}" if af == 4 else PROBES[6][probe],
        "type": "ping", "group_id": 1001 + af, "step": 240, "stored_timestamp": time + rng.randrange(60),
    }  # fmt: skip


def fifty() -> list[dict[str, Any]]:
    """Forty-two pings, and eight results of the kinds that also occur."""
    rng = random.Random(50)
    results = [ping(number, rng) for number in range(42)]
    unresolved = {**ping(44, rng), "result": [{"error": "dns resolution failed: non-recoverable failure"}]}
    del unresolved["dst_addr"], unresolved["src_addr"], unresolved["af"]
    old = {
        "addr": "178.63.78.16", "avg": 20.1, "dup": 0, "from": "62.194.83.50", "fw": 4400, "max": 20.3,
        "min": 19.9, "mode": "ICMP4", "msm_id": 1000047, "name": "atlas.example", "prb_id": 165, "rcvd": 2,
        "result": [{"rtt": 19.938, "ttl": 54}, {"x": "*"}, {"rtt": 20.3, "srcaddr": "192.168.1.102"}],
        "sent": 3, "size": 20, "srcaddr": "192.168.1.101", "timestamp": SECOND - 1000, "ttl": 54, "type": "ping",
    }  # fmt: skip
    oldest = {
        "addr": "178.63.78.16", "avg": 20.126, "dup": 0, "from": "62.194.83.50", "fw": 1, "max": 20.3,
        "min": 19.9, "msm_id": 1000047, "name": "atlas.example", "prb_id": 165, "rcvd": 3, "sent": 3,
        "size": 56, "timestamp": SECOND - 2000,
    }  # fmt: skip
    # Nothing came back, and only the first packet names the probe.
    lost = {
        "addr": "178.63.78.16", "af": 4, "avg": -1, "dst_addr": None, "from": "62.194.83.50", "fw": 4400,
        "msm_id": 1000047, "prb_id": 165, "rcvd": 0, "sent": 3, "timestamp": SECOND - 500, "type": "ping",
        "result": [{"x": "*", "srcaddr": "192.168.1.101"}, {"x": "*"}, {"x": "*"}],
    }  # fmt: skip
    # The probe got another address between two packets.
    moved = {
        **lost, "dst_addr": "178.63.78.16", "timestamp": SECOND - 400,
        "result": [{"late": 1}, {"x": "*", "src_addr": "192.168.1.103"}, {"rtt": 9.5, "src_addr": "192.168.1.104"}],
    }  # fmt: skip
    trace = {
        **ping(47, rng), "type": "traceroute", "msm_name": "Traceroute", "paris_id": 3,
        "result": [{"hop": 1, "result": [{"from": "192.168.10.1", "rtt": 0.9, "size": 68, "ttl": 64}]}],
    }  # fmt: skip
    wrong_family = {**ping(48, rng), "af": 6, "src_addr": "192.0.2.9", "dst_addr": "203.119.111.139"}
    odd = {**ping(49, rng), "result": [{"rtt": 3.25}, {"late": 2}, {"rtt": "fast"}]}
    return [
        *results[:20],
        unresolved,
        old,
        *results[20:30],
        oldest,
        trace,
        wrong_family,
        odd,
        *results[30:],
        lost,
        moved,
    ]


Measurement = tuple[datetime.datetime, str, int, float]


def read_plainly(results: list[dict[str, Any]], source: str = "src_addr") -> dict[str, list[Measurement]]:
    """The measurements of every probe in time order, ties as they come."""
    found: dict[str, list[Measurement]] = {}
    for result in results:
        if result.get("type", "ping") != "ping" or "result" not in result:
            continue
        target = result.get("dst_addr") or result.get("addr")
        if target is None or (":" in target) != (result.get("af", 4) == 6):
            continue
        for reply in result["result"]:
            if "rtt" in reply and isinstance(reply["rtt"], float):
                rtt = float(np.float32(reply["rtt"]))
            elif "x" in reply or "error" in reply:
                rtt = -1.0
            else:
                continue
            named = [{"src_addr": "", **one} for one in (reply, result, *result["result"])]
            names = [one["src_addr"] or one.get("srcaddr", "") for one in named]
            probe = result["from"] if source == "from" else next(name for name in names if name)
            time = datetime.datetime.fromtimestamp(result["timestamp"], datetime.UTC).replace(tzinfo=None)
            found.setdefault(probe, []).append((time, target, 6 if ":" in target else 4, rtt))
    return {probe: sorted(rows, key=lambda row: row[0]) for probe, rows in found.items()}


# Of the fifty: row, reply, reason.
REJECTED = [
    (20, 1, "null_src_addr"),
    (32, 0, "no_replies"),
    (33, 0, "not_ping"),
    (34, 1, "ip_version"),
    (34, 2, "ip_version"),
    (34, 3, "ip_version"),
    (35, 2, "bad_reply"),
    (35, 3, "bad_rtt"),
    (49, 1, "bad_reply"),
]


def rejected_counts() -> dict[str, int]:
    """How many rows of the fifty are rejected for each reason."""
    return dict(sorted(Counter(reason for _, _, reason in REJECTED).items()))
