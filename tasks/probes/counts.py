"""Count for a run's report, by split: measurements per probe, record sizes, failed share, IPv4 and IPv6 share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schemas.probes import SPLITS
from tasks.probes.records.encode import Block


@dataclass
class ShardCounts:
    """Count what is in one shard; histograms count values up to a power of two, by its exponent.

    Attributes:
        failed: measurements with a negative round trip time.
        ipv6: IPv6 measurements; the others are IPv4. `ipv6_probes`: probes that have any.
        record_bytes: total size of the `measurements` of all records.
    """

    split: str
    probes: int = 0
    records: int = 0
    measurements: int = 0
    duplicates: int = 0
    failed: int = 0
    ipv6: int = 0
    ipv6_probes: int = 0
    record_bytes: int = 0
    largest_record_bytes: int = 0
    most_measurements: int = 0
    measurements_up_to: Counter[str] = field(default_factory=Counter)
    record_bytes_up_to: Counter[str] = field(default_factory=Counter)

    def add_block(self, block: Block) -> None:
        """Count whole probes."""
        self.failed += int((block.rtts < 0).sum())
        self.add_probes(np.diff(block.starts), block.versions == 6)

    def add_probes(self, rows: NDArray[np.int64], six: NDArray[np.bool_]) -> None:
        """Count probes by their measurements and IP version; `failed` is counted apart."""
        self.probes += len(rows)
        self.measurements += int(rows.sum())
        self.ipv6 += int(rows[six].sum())
        self.ipv6_probes += int(six.sum())
        self.most_measurements = max(self.most_measurements, int(rows.max()))
        self.measurements_up_to.update(_up_to(rows))

    def add_records(self, sizes: NDArray[np.int64]) -> None:
        """Count records by the bytes that their measurements take: int64[r]."""
        self.records += len(sizes)
        self.record_bytes += int(sizes.sum())
        self.largest_record_bytes = max(self.largest_record_bytes, int(sizes.max()))
        self.record_bytes_up_to.update(_up_to(sizes))

    def as_dict(self) -> dict[str, Any]:
        """Return the counts as JSON."""
        return asdict(self) | {
            name: {key: counter[key] for key in sorted(counter, key=int)}
            for name, counter in (
                ("measurements_up_to", self.measurements_up_to),
                ("record_bytes_up_to", self.record_bytes_up_to),
            )
        }


def _up_to(values: NDArray[np.int64]) -> dict[str, int]:
    """Count the values, each at least 1, up to each power of two, by its exponent."""
    classes = np.bincount(np.ceil(np.log2(values)).astype(np.int64))
    return {str(power): int(count) for power, count in enumerate(classes) if count}


_SUMS = ("probes", "records", "measurements", "duplicates", "failed", "ipv6", "ipv6_probes", "record_bytes")


def split_report(
    shards: Sequence[Mapping[str, Any]], stored_bytes: Sequence[int]
) -> dict[str, dict[str, Any]]:
    """Return counts, shares and histograms for each split that has shards.

    Args:
        shards: results of `ShardCounts.as_dict`.
        stored_bytes: sizes of the shards' files.
    """
    pairs = list(zip(shards, stored_bytes, strict=True))
    return {
        split: _one_split([pair for pair in pairs if pair[0]["split"] == split])
        for split in SPLITS
        if any(shard["split"] == split for shard in shards)
    }


def _one_split(pairs: Sequence[tuple[Mapping[str, Any], int]]) -> dict[str, Any]:
    shards = [shard for shard, _ in pairs]
    sums = {name: sum(int(shard[name]) for shard in shards) for name in _SUMS}
    rows = sums["measurements"]
    return {
        "shards": len(shards),
        **sums,
        "stored_bytes": sum(size for _, size in pairs),
        "failed_share": round(sums["failed"] / rows, 6),
        "ipv4_share": round(1 - sums["ipv6"] / rows, 6),
        "ipv6_share": round(sums["ipv6"] / rows, 6),
        "measurements_per_probe": {
            "mean": round(rows / sums["probes"], 3),
            "most": max(int(shard["most_measurements"]) for shard in shards),
            "probes_up_to": _merged(shard["measurements_up_to"] for shard in shards),
        },
        "measurement_bytes_per_record": {
            "mean": round(sums["record_bytes"] / sums["records"], 1),
            "most": max(int(shard["largest_record_bytes"]) for shard in shards),
            "records_up_to": _merged(shard["record_bytes_up_to"] for shard in shards),
        },
    }


def _merged(histograms: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Sum histograms by class; name each class by its upper end."""
    total: Counter[int] = Counter()
    for histogram in histograms:
        total.update({int(power): count for power, count in histogram.items()})
    return {str(2**power): total[power] for power in sorted(total)}
