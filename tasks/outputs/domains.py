"""The table of what Gristmill makes: how each kind of output is recognised, and what can be done with it.

`validate`, `inspect` and `convert` know no domain but through this table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from schemas import corpus, probes, sft, tokenizer
from schemas.inspection import Inspection
from schemas.run import RunManifest
from schemas.sft import StorageFormat
from schemas.verdict import Verdict
from tasks.corpus.documents import validate_documents
from tasks.corpus.validate import validate_sample
from tasks.outputs.documents import inspect_documents, query_documents
from tasks.outputs.found import Outputs, Tables
from tasks.outputs.packed import inspect_packed, query_packed
from tasks.outputs.probe_rows import inspect_probes, query_probes
from tasks.outputs.rejects import REJECTS, inspect_rejects, query_rejects, validate_rejects
from tasks.outputs.tokenizers import inspect_tokenizer, query_tokenizer
from tasks.probes.validate import validate_probes, validate_records
from tasks.run.find import Found
from tasks.sft.shards.find import find_shards, shard_format
from tasks.sft.shards.validate import validate_shards
from tasks.sft.validate import validate_packed
from tasks.tokenizer.loading import TOKENIZER_FILE, validate_tokenizers
from tasks.tokenizer.validate import validate_tokenizer

PARQUET = ".parquet"


@dataclass(frozen=True)
class Domain:
    """One kind of output.

    Attributes:
        kind: what it is, in a few words.
        flow: the flow that makes it; `None` for what all flows make.
        is_file: whether a file is one by its name, or a folder by what lies in it.
        columns: those a Parquet file is recognised by; none if it is never Parquet.
        run_files: the data files of a run.
        validate_run: check a run beyond manifest, digests and ledger; `full` reads every row.
        validate_files: check loose files; takes the files, `file` or `folder`, and what the user named.
        inspect: numbers, and some rows; takes the output, rows to show, the first of them, a tokenizer's folder.
        query: the tables of a query.
    """

    kind: str
    flow: str | None
    is_file: Callable[[Path], bool]
    columns: frozenset[str]
    run_files: Callable[[Found[Path]], Sequence[Path]]
    validate_run: Callable[[Path, RunManifest, bool], Verdict] | None
    validate_files: Callable[[Sequence[Path], str, str], Verdict]
    inspect: Callable[[Outputs, int, int, Path | None], Inspection]
    query: Callable[[Outputs], Tables]


def _never(path: Path) -> bool:
    return False


def _is_packed(path: Path) -> bool:
    return shard_format(path) in (StorageFormat.MEMMAP, StorageFormat.NPY)


def _has_suffix(path: Path) -> bool:
    return path.suffix == probes.SHARD_SUFFIX and path.is_file()


def _is_tokenizer(path: Path) -> bool:
    return path.name == TOKENIZER_FILE and path.is_file()


PACKED = Domain(
    kind="packed bins",
    flow=sft.FLOW,
    is_file=_is_packed,
    columns=frozenset({"input_ids", "loss_mask", "seq_start_id"}),
    run_files=lambda run: find_shards(run.folder),
    validate_run=validate_packed,
    validate_files=validate_shards,
    inspect=inspect_packed,
    query=query_packed,
)
DOCUMENTS = Domain(
    kind="sampled documents",
    flow=corpus.FLOW,
    is_file=_never,
    columns=frozenset(corpus.OWN_COLUMNS),
    run_files=lambda run: [file for file in run.outputs(ending=PARQUET) if file.parent == run.folder],
    validate_run=validate_sample,
    validate_files=validate_documents,
    inspect=inspect_documents,
    query=query_documents,
)
TOKENIZER = Domain(
    kind="tokenizer",
    flow=tokenizer.FLOW,
    is_file=_is_tokenizer,
    columns=frozenset(),
    run_files=lambda run: run.outputs(ending=f"/{TOKENIZER_FILE}"),
    validate_run=validate_tokenizer,
    validate_files=validate_tokenizers,
    inspect=inspect_tokenizer,
    query=query_tokenizer,
)
PROBES = Domain(
    kind="probe rows",
    flow=probes.FLOW,
    is_file=_has_suffix,
    columns=frozenset(),
    run_files=lambda run: run.outputs(ending=probes.SHARD_SUFFIX),
    validate_run=validate_probes,
    validate_files=validate_records,
    inspect=inspect_probes,
    query=query_probes,
)
REJECTED = Domain(
    kind="rejected rows",
    flow=None,
    is_file=_never,
    columns=frozenset({"source_file", "row", "reason"}),
    run_files=lambda run: run.outputs(REJECTS),
    validate_run=None,
    validate_files=validate_rejects,
    inspect=inspect_rejects,
    query=query_rejects,
)
DOMAINS = (PACKED, DOCUMENTS, TOKENIZER, PROBES, REJECTED)
