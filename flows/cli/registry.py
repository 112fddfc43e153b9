"""List the flows a user can start, and find a complete run of one without starting it.

Configurations and identities are named by module and imported when needed, so that `--help` does not pay for them.
"""

from __future__ import annotations

import contextlib
import importlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.cli.summary import Summary
from schemas.config import Config
from tasks.run.receipts import Verify


@dataclass(frozen=True)
class FlowEntry:
    """Describe one flow.

    Attributes:
        name: the command.
        summary: one line of help.
        schema: module of the configuration model; `config` is the model's name.
        identity: module with `DOMAIN` and `identify(config)`.
        module: name of the flow's module in `package`, and of the flow in it.
        options: for each command-line option of this flow alone its name, the field that it sets, and its help.
    """

    name: str
    summary: str
    schema: str
    config: str
    identity: str
    module: str
    package: str = "flows"
    options: tuple[tuple[str, str, str], ...] = ()

    def parse(self, raw: Any) -> Any:
        """Return the validated configuration.

        Raises:
            ConfigError: a field is wrong; the message gives its path, its value and what is allowed.
        """
        model: type[Config] = getattr(importlib.import_module(self.schema), self.config)
        return model.parse(raw)


def _entry(
    name: str, summary: str, domain: str, config: str, options: tuple[tuple[str, str, str], ...] = ()
) -> FlowEntry:
    """Describe a flow of ours, whose modules are named after its domain."""
    return FlowEntry(
        name=name,
        summary=summary,
        schema=f"schemas.{domain}",
        config=config,
        identity=f"tasks.{domain}.identity",
        module=name.replace("-", "_"),
        options=options,
    )


PACK_SFT = _entry("pack-sft", "pack chat data into shards", "sft", "PackSftConfig")
SAMPLE_CORPUS = _entry(
    "sample-corpus",
    "draw an exact, seeded sample from bucketed Parquet corpora",
    "corpus",
    "SampleCorpusConfig",
    (
        ("--io-workers", "io_workers", "how many files are inspected at once"),
        ("--max-rows", "max_rows", "most rows of an output file"),
        ("--batch-size", "batch_rows", "most rows read at once"),
    ),
)
TRAIN_TOKENIZER = _entry(
    "train-tokenizer",
    "train a tokenizer on a sample",
    "tokenizer",
    "TrainTokenizerConfig",
)
BUILD_PROBE_ROWS = _entry(
    "build-probe-rows",
    "turn network measurements into one ArrayRecord record per probe",
    "probes",
    "BuildProbeRowsConfig",
)
FLOWS = (SAMPLE_CORPUS, TRAIN_TOKENIZER, BUILD_PROBE_ROWS, PACK_SFT)


def run_or_find(
    entry: FlowEntry, config: Any, runner: str, verify: Verify, force: bool, address: str | None = None
) -> Summary:
    """Run a flow, or find its complete run; import Prefect only if there is something to do.

    Args:
        config: as `entry.parse` returns it.
        runner: `threads` or `processes`.
        verify: how closely to check published files and cached results.
        force: run even if there is a complete run.
        address: the Prefect server to use instead of the configured, running or embedded one.
    """
    from tasks.inputs.survey import TooMuchToReadError, survey_few
    from tasks.run.layout import run_folder
    from tasks.run.publish import complete_run

    started = time.monotonic()
    identity = importlib.import_module(entry.identity)
    root = Path(config.output_dir)
    identity.DOMAIN.claim(root)
    manifest = None
    # Reading much is the work of the flow.
    with contextlib.suppress(TooMuchToReadError):
        run_hash = identity.identify(config, survey_few).run_hash
        if not force:
            manifest = complete_run(root, run_hash, verify, identity.DOMAIN.published)
    cached = manifest is not None
    if manifest is None:
        from flows.cli.launch import run_flow

        manifest = run_flow(
            entry.package,
            entry.module,
            runner,
            config.workers,
            address,
            config=config,
            verify=verify,
            force=force,
        )
    return Summary(manifest, str(run_folder(root, manifest.run_hash)), cached, time.monotonic() - started)
