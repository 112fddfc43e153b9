"""Print a conversion: a table of sizes for people, one JSON line for scripts."""

from __future__ import annotations

from flows.cli.plain import print_json
from tasks.outputs.convert import Conversion

_SHOWN_SHARDS = 20


def print_conversion(conversion: Conversion, as_json: bool) -> None:
    """Print the sizes before and after, with the totals last."""
    if as_json:
        print_json(conversion.as_dict())
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{conversion.source} as {conversion.format}, sizes in bytes")
    table.add_column("shard", overflow="fold")
    for name in ("bins", "tokens", "before", "after", "ratio"):
        table.add_column(name, justify="right")
    for shard in conversion.shards[:_SHOWN_SHARDS]:
        sizes = (shard.source_bytes, shard.target_bytes)
        table.add_row(shard.target, f"{shard.bins:,}", f"{shard.tokens:,}", *_compared(*sizes))
    if len(conversion.shards) > _SHOWN_SHARDS:
        table.add_row(f"… {len(conversion.shards) - _SHOWN_SHARDS:,} more")
    if len(conversion.shards) > 1:
        table.add_section()
        counts = (f"{conversion.total(name):,}" for name in ("bins", "tokens"))
        sizes = (conversion.total("source_bytes"), conversion.total("target_bytes"))
        table.add_row("all", *counts, *_compared(*sizes))
    Console().print(table)
    print(f"written to {conversion.target}")


def _compared(before: int, after: int) -> tuple[str, str, str]:
    return f"{before:,}", f"{after:,}", f"{after / before:.2f}" if before else "-"
