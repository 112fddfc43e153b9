"""Inspect probe rows: records and their sizes, padding in training, and a crop as the model sees it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from schemas.inspection import Inspection
from schemas.probes import measurements_schema
from schemas.report import Chart, Column, Fact, Figure, Series, Table
from tasks.outputs.found import Outputs, Tables
from tasks.outputs.query import PLACE
from tasks.probes.training.crops import Contexts, Crops
from tasks.probes.training.draws import MODES
from tasks.probes.training.sampler import ProbeRowSampler
from tasks.probes.training.source import ProbeRowDataSource
from tasks.probes.training.tokens import decode
from tasks.report.histogram import power_classes
from tasks.report.numbers import binary, count, plain, share, size
from tasks.storage.reading import file_bytes

# Records read at once.
_BATCH = 64
# Records to draw contexts from: enough for four groups of 256, or fewer if records are large.
_SAMPLED = 1_024
_SAMPLED_BYTES = 1 << 28
_GROUPS = (64, 256)
# Most measurements shown of one record.
_MEASUREMENTS = 8


def inspect_probes(outputs: Outputs, rows: int, first: int, tokenizer: Path | None = None) -> Inspection:
    """Inspect ArrayRecord shards.

    Args:
        rows: number of records to show, starting at `first`; with 0, no crop is shown either.

    Raises:
        InputError: a file or a record cannot be read.
        MissingExtraError: array_record is not installed.
    """
    source = ProbeRowDataSource([str(path) for path in outputs.files])
    totals: Counter[str] = Counter()
    sizes: Counter[int] = Counter()
    measurements: Counter[int] = Counter()
    probes = set()
    for item, num_bytes in _items(source, 0, len(source)):
        number = item["n_measurements"]
        batch = item["measurements"]
        probes.add(item["src_id"])
        totals.update(
            measurements=number,
            bytes=num_bytes,
            failed=int(np.count_nonzero(batch["rtt"].to_numpy() < 0)),
            ipv6=int(np.count_nonzero(batch["ip_version"].to_numpy() == 6)),
        )
        sizes[_class(num_bytes)] += 1
        measurements[_class(number)] += 1
    charts = [
        _histogram("Measurements per record", "measurements, up to", measurements),
        _histogram("Bytes of measurements per record", "bytes, up to", sizes),
    ]
    tables = []
    if len(source):
        mean = totals["bytes"] / len(source)
        sampled = min(len(source), max(1, min(_SAMPLED, int(_SAMPLED_BYTES / mean))))
        sampler = ProbeRowSampler()
        contexts = _contexts(source, sampler, range(sampled))
        charts += [_padding(source, sampler, sampled), _modes(contexts, sampled)]
        tables += [_record(item, number) for number, item in _shown(source, rows, first)]
        if rows:
            tables += _crop(sampler.crops(contexts, (0, 0)))
    facts = (
        Fact("records", count(len(source)), f"of {count(len(probes))} probes"),
        Fact("measurements", count(totals["measurements"])),
        Fact("failed", share(totals["failed"], totals["measurements"]), "of the measurements"),
        Fact("IPv6", share(totals["ipv6"], totals["measurements"]), "of the measurements"),
        Fact(
            "stored",
            size(sum(map(file_bytes, outputs.files))),
            f"in {len(outputs.files)} shards",
        ),
    )
    return Inspection(outputs.path, outputs.kind, facts, tuple(tables), tuple(charts), rows=len(source))


def _items(source: ProbeRowDataSource, first: int, end: int) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield the items in order, each with the bytes of its measurements, which are those of its record."""
    stored = measurements_schema().names
    for start in range(first, end, _BATCH):
        for item in source.__getitems__(range(start, min(start + _BATCH, end))):
            batch = item["measurements"].select(stored)
            yield item | {"measurements": batch}, batch.nbytes


def _class(value: int) -> int:
    """Return the smallest power of two that is not smaller."""
    return 1 << max(0, value - 1).bit_length()


def _histogram(title: str, axis: str, counts: Counter[int]) -> Chart:
    ends, records = power_classes(counts)
    series = Series("records", tuple(map(float, records)), tuple(map(count, records)))
    caption = "Each class reaches up to a power of two."
    return Chart(title, caption, axis, tuple(map(binary, ends)), (series,), upright=True)


def _contexts(source: ProbeRowDataSource, sampler: ProbeRowSampler, records: range) -> Contexts:
    parts = []
    for start in range(records.start, records.stop, _BATCH):
        some = range(start, min(start + _BATCH, records.stop))
        parts.append(sampler.sample(source.sampler_rows(some), [(0, number) for number in some]))
    return Contexts.concat(parts)


def _padding(source: ProbeRowDataSource, sampler: ProbeRowSampler, sampled: int) -> Chart:
    def padding(group: int, pack: bool) -> float:
        """Return the share of padding when the contexts of `group` records are laid out together."""
        crops = padded = 0
        for start in range(0, sampled, group):
            contexts = _contexts(source, sampler, range(start, min(start + group, sampled)))
            segments = sampler.crops(contexts, (0, start), pack)["inputs_segmentation"]
            crops += segments.size
            padded += int(np.count_nonzero(segments == 0))
        return padded / crops if crops else 0.0

    shares = {"one context a crop": padding(max(_GROUPS), False)}
    shares |= {f"packed, groups of {group}": padding(group, True) for group in _GROUPS}
    return Chart(
        "Padding in training",
        f"Share of padding in crops of {count(sampler.crop_size)} tokens, measured on {count(sampled)} records "
        "with the loader's own sampling.",
        "layout",
        tuple(shares),
        (Series("padding", tuple(shares.values()), tuple(share(value) for value in shares.values())),),
    )


def _modes(contexts: Contexts, sampled: int) -> Chart:
    counts = np.bincount(contexts.modes, minlength=len(MODES)).tolist()
    total = sum(counts)
    series = Series("contexts", tuple(map(float, counts)), tuple(share(value, total) for value in counts))
    caption = f"{count(total)} contexts of {count(sampled)} records, by the timestamps they show."
    return Chart("Modes of contexts", caption, "timestamps", MODES, (series,))


def _shown(source: ProbeRowDataSource, rows: int, first: int) -> list[tuple[int, dict[str, Any]]]:
    end = min(first + rows, len(source))
    return [(first + place, item) for place, (item, _) in enumerate(_items(source, first, end))]


def _record(item: dict[str, Any], number: int) -> Table:
    batch = item["measurements"]
    rows = tuple(
        (str(row["event_time"]), row["dst_addr"], plain(row["ip_version"]), _rtt(row["rtt"]))
        for row in batch.slice(0, _MEASUREMENTS).to_pylist()
    )
    columns = (Column("time"), Column("destination"), Column("IP"), Column("round trip", True))
    more = batch.num_rows - len(rows)
    return Table(
        f"Record {count(number)}: {item['src_addr']}, {count(batch.num_rows)} measurements",
        columns,
        rows,
        f"and {count(more)} more" if more else "",
    )


def _rtt(rtt_ms: float | None) -> Figure:
    is_failed = rtt_ms is None or rtt_ms < 0
    return Figure("failed", None) if is_failed else Figure(f"{rtt_ms:.3f} ms", rtt_ms)


def _crop(crops: Crops) -> list[Table]:
    """Show the first crop, measurement by measurement."""
    tokens, segments = crops["inputs"][0], crops["inputs_segmentation"][0]
    rows = []
    for segment in range(1, int(segments.max(initial=0)) + 1):
        for measurement in decode(tokens[segments == segment]):
            when = measurement.seconds
            rows.append(
                (
                    plain(segment),
                    measurement.src_addr,
                    measurement.dst_addr,
                    _rtt(measurement.rtt_ms),
                    "–" if when is None else datetime.fromtimestamp(when, UTC).strftime("%Y-%m-%d %H:%M:%S"),
                )
            )
    heads = (Column("context", True), Column("source"), Column("destination"), Column("round trip", True))
    padding = int(np.count_nonzero(segments == 0))
    used = count(len(tokens) - padding)
    note = (
        f"{used} tokens in {int(segments.max(initial=0))} contexts, {count(padding)} of padding; "
        f"ids {' '.join(map(str, tokens[:24].tolist()))} …"
    )
    return [Table("A crop, decoded from its tokens", (*heads, Column("time")), tuple(rows), note)]


def query_probes(outputs: Outputs) -> Tables:
    """Return the table `measurements`."""
    return Tables(streams={"measurements": measurement_batches(outputs)})


def measurement_batches(outputs: Outputs) -> pa.RecordBatchReader:
    """Yield every measurement, with where its record is and that record's `src_id` and `src_addr`, for queries."""
    texts = [pa.field(name, pa.string()) for name in PLACE[1:]]
    own = [
        *texts,
        *(pa.field(name, pa.int64()) for name in ("record", "src_id")),
        pa.field("src_addr", pa.string()),
    ]
    # The measurements themselves, whatever else the source hands out with them.
    measured = measurements_schema()
    schema = pa.schema([*own, *measured])

    def batches() -> Iterator[pa.RecordBatch]:
        for path in outputs.files:
            where = asdict(outputs.place(path))
            source = ProbeRowDataSource([str(path)])
            for record, (item, _) in enumerate(_items(source, 0, len(source))):
                batch = item["measurements"].select(measured.names)
                values = {**where, **item, "record": record}
                columns = [pa.repeat(pa.scalar(values[f.name], f.type), batch.num_rows) for f in own]
                yield pa.record_batch([*columns, *batch.columns], schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())
