"""Print a finished run: lines for people, one JSON object for scripts."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.cli.plain import print_json
from schemas.errors import GristmillError
from schemas.run import RunManifest
from schemas.tokenizer import measured
from tasks.run.layout import MANIFEST, REPORT_PAGE
from tasks.run.manifest import statistics_faults


@dataclass(frozen=True)
class Summary:
    """Describe a finished run as the command line reports it."""

    manifest: RunManifest
    run_dir: str
    cached: bool
    seconds: float

    @property
    def report(self) -> str | None:
        """Path of the run's report; `None` if the report failed, or if an earlier version made the run."""
        page = Path(self.run_dir, REPORT_PAGE)
        return str(page) if page.is_file() else None

    def as_dict(self) -> dict[str, Any]:
        """Return the summary as JSON."""
        manifest, ledger = self.manifest, self.manifest.ledger
        # Lists stay in the manifest: a sample may have thousands of buckets.
        totals = {name: value for name, value in manifest.statistics.items() if not isinstance(value, list)}
        return {
            "flow": manifest.flow,
            "run_hash": manifest.run_hash,
            "run_dir": self.run_dir,
            "report": self.report,
            "cached": self.cached,
            "seconds": round(self.seconds, 3),
            "stats": {
                "rows_in": ledger.rows_in,
                "rows_out": ledger.rows_used,
                "not_selected": ledger.not_selected,
                "filtered": ledger.filtered,
                "duplicates": ledger.duplicates,
                "rejected": ledger.rejected,
                **totals,
            },
            "warnings": manifest.warnings,
            "outputs": [record.model_dump() for record in manifest.outputs],
        }

    def lines(self) -> list[str]:
        """Return the summary as plain lines.

        Raises:
            IntegrityError: `bad_manifest`: the statistics are not those of the flow.
        """
        ledger = self.manifest.ledger
        out = [
            f"{self.manifest.flow}: {'already complete, checked' if self.cached else 'done'} in {self.seconds:.1f} s",
            f"  rows       {ledger.rows_in:,} in, {ledger.rows_used:,} used, {ledger.filtered:,} filtered, "
            f"{ledger.duplicates:,} duplicates, {ledger.rows_rejected:,} rejected",
        ]
        out += [f"  rejected   {rows:,} x {reason}" for reason, rows in ledger.rejected.items()]
        with statistics_faults(str(Path(self.run_dir, MANIFEST))):
            out += self._totals()
        out += [f"  warning    {warning}" for warning in self.manifest.warnings]
        out.append(f"  run        {self.run_dir}")
        if self.report is not None:
            out.append(f"  report     {self.report}")
        return out

    def _totals(self) -> list[str]:
        """Return the lines of what this flow alone counts."""
        statistics, out = self.manifest.statistics, []
        for split, datasets in statistics.get("splits", {}).items():
            for name, counts in datasets.items():
                out.append(
                    f"  {split:<10} {name}: {counts['sequences']:,} sequences in {counts['bins']:,} bins of "
                    f"{counts['pack_size']:,}, {counts['packing_efficiency']:.2f}% full, "
                    f"{counts['tokens']:,} tokens, {counts['trained_tokens']:,} trained"
                )
                if len(datasets) > 1:
                    out.append(
                        f"  {'':<10} weight {counts['weight']:g} asks for {counts['weight_share']:.1%} of samples; "
                        f"it has {counts['share']:.1%}; {counts['epochs']:.2f} epochs in a blend as long as the split"
                    )
        for bucket in statistics.get("buckets", []):
            out.append(
                f"  {bucket['source']}/{bucket['bucket']}: {bucket['sampled']:,} of {bucket['requested']:,}, "
                f"from {bucket['rows']:,} rows, {bucket['text_bytes']:,} bytes of text in {bucket['shards']} shards"
            )
        for bucket in statistics.get("bytes_per_token", []):
            out.append(f"  {bucket['bucket']}: {measured(bucket)}")
        for split, counts in statistics.get("probe_splits", {}).items():
            out.append(
                f"  {split:<10} {counts['measurements']:,} measurements of {counts['probes']:,} probes in "
                f"{counts['records']:,} records, {counts['failed_share']:.1%} failed, {counts['ipv6_share']:.1%} IPv6"
            )
        return out


def print_summary(summary: Summary, as_json: bool) -> None:
    """Print the summary to stdout, as one JSON object if `as_json`."""
    if as_json:
        print_json(summary.as_dict())
    else:
        print(os.linesep.join(summary.lines()))


def print_error(error: GristmillError, as_json: bool) -> None:
    """Print one readable message to stderr and, if `as_json`, a JSON object to stdout, if they can be written."""
    with contextlib.suppress(OSError):
        print(f"gristmill: {error}", file=sys.stderr)
        if as_json:
            print_json({"error": error.as_dict()})
