"""List what Gristmill makes: how to recognise each kind of output, and what can be done with it.

`validate`, `inspect` and `convert` know the domains only through this table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
    """A kind of output.

    Attributes:
        kind: what it is, in a few words.
        flow: the flow that makes it; `None` for what every flow makes.
        is_file: tests a file by its name, or a folder by its contents.
        columns: columns that identify a Parquet file; none if it is never Parquet.
        run_files: the data files of a run.
        validate_run: check a run beyond manifest, digests and ledger; takes the run, its manifest, and whether to
            read every row.
        is_remote: whether files behind a URI can be validated.
        validate_files: check loose files; takes the files, `file` or `folder`, and the path that the user gave.
        inspect: return numbers and some rows; takes the output, rows to show, the first row, a tokenizer's folder.
        query: return the tables of a query.
        published: names at the top of an output folder, and their link targets in its latest run.
    """

    kind: str
    flow: str | None
    is_file: Callable[[Path], bool]
    columns: frozenset[str]
    run_files: Callable[[Found[Path]], Sequence[Path]]
    validate_run: Callable[[Found[Any], RunManifest, bool], Verdict] | None
    validate_files: Callable[[Sequence[Any], str, str], Verdict]
    inspect: Callable[[Outputs, int, int, Path | None], Inspection]
    query: Callable[[Outputs], Tables]
    is_remote: bool = False
    published: Mapping[str, str] = field(default_factory=dict)


def _in_folder(
    validate: Callable[[Path, RunManifest, bool], Verdict],
) -> Callable[[Found[Any], RunManifest, bool], Verdict]:
    return lambda run, manifest, full: validate(run.folder, manifest, full)


def _never(path: Path) -> bool:
    return False


def _is_packed(path: Path) -> bool:
    return shard_format(path) in (StorageFormat.MEMMAP, StorageFormat.NPY)


def _is_records(path: Path) -> bool:
    return path.suffix == probes.SHARD_SUFFIX and path.is_file()


def _is_tokenizer(path: Path) -> bool:
    return path.name == TOKENIZER_FILE and path.is_file()


_PACKED_COLUMNS = frozenset({"input_ids", "loss_mask", "seq_start_id"})
_REJECT_COLUMNS = frozenset({"source_file", "row", "reason"})
_NO_COLUMNS: frozenset[str] = frozenset()

# Fields in the order of the class.
PACKED = Domain(
    "packed bins", sft.FLOW, _is_packed, _PACKED_COLUMNS, lambda run: find_shards(run.folder),
    validate_packed, validate_shards, inspect_packed, query_packed, is_remote=True,
    published=sft.PUBLISHED,
)  # fmt: skip
DOCUMENTS = Domain(
    "sampled documents", corpus.FLOW, _never, frozenset(corpus.OWN_COLUMNS),
    lambda run: [file for file in run.outputs(ending=PARQUET) if file.parent == run.folder],
    _in_folder(validate_sample), validate_documents, inspect_documents, query_documents,
    published=corpus.PUBLISHED,
)  # fmt: skip
TOKENIZER = Domain(
    "tokenizer", tokenizer.FLOW, _is_tokenizer, _NO_COLUMNS, lambda run: run.outputs(ending=f"/{TOKENIZER_FILE}"),
    _in_folder(validate_tokenizer), validate_tokenizers, inspect_tokenizer, query_tokenizer,
    published=tokenizer.PUBLISHED,
)  # fmt: skip
PROBES = Domain(
    "probe rows", probes.FLOW, _is_records, _NO_COLUMNS, lambda run: run.outputs(ending=probes.SHARD_SUFFIX),
    _in_folder(validate_probes), validate_records, inspect_probes, query_probes,
    published=probes.PUBLISHED,
)  # fmt: skip
REJECTED = Domain(
    "rejected rows", None, _never, _REJECT_COLUMNS, lambda run: run.outputs(REJECTS),
    None, validate_rejects, inspect_rejects, query_rejects,
)  # fmt: skip
DOMAINS = (PACKED, DOCUMENTS, TOKENIZER, PROBES, REJECTED)
