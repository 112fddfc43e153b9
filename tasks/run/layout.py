"""Define the layout of an output directory, and claim the right to use it.

See "A run" in docs/architecture.md. One output directory belongs to one flow; names that existed before
it are never replaced.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from schemas.errors import ConfigError
from tasks.storage import links
from tasks.storage.atomic import storage_errors, write_file
from tasks.storage.names import link_target, make_folder
from tasks.storage.reading import parse_json, read_bytes

MARKER, RUNS, STAGES = links.MARKER, links.RUNS, links.STAGES
LATEST = "latest"
MANIFEST = "manifest.json"
REPORT_PAGE = "report.html"
CONFIG = "config.json"
INPUTS = "inputs.json"
# What a run's folder holds about the run itself.
NOTES = (CONFIG, INPUTS, REPORT_PAGE)
FINGERPRINTS = "fingerprints.json"

# A path keeps one slash of `s3://`.
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def stage_folder(output_dir: Path, stage: str) -> Path:
    """Return the folder of a stage: everything heavy is written there, once."""
    return output_dir / STAGES / stage


def run_folder(output_dir: Path, run_hash: str) -> Path:
    """Return the folder of a run; it is immutable once it has a manifest."""
    return output_dir / RUNS / run_hash


def claim(output_dir: Path, flow: str, published: dict[str, str]) -> None:
    """Claim `output_dir` for this flow by writing its marker, before anything else.

    Args:
        output_dir: the output directory; created if missing.
        flow: name of the flow.
        published: the top-level names this flow publishes, each with the link target it will have.

    Raises:
        ConfigError: `foreign_output` when the directory belongs to another flow or holds a file of one of our names
            that we did not make, or when `runs`, `stages` or the marker is a link; `bad_config` when it is a file;
            `remote_output` when it is a URI.
        StorageError: the directory cannot be created or written.
    """
    if _URI.match(str(output_dir)):
        raise ConfigError(
            "output_dir is a local or mounted folder, not a URI; write there, then copy the run",
            code="remote_output",
            where=str(output_dir),
        )
    with storage_errors(output_dir, "create the output folder"):
        if "\0" in str(output_dir) or (output_dir.exists() and not output_dir.is_dir()):
            raise ConfigError("this is not a folder; choose another output_dir", where=str(output_dir))
        make_folder(output_dir)
    marker = output_dir / MARKER
    links.refuse_link(marker)
    # Checked before the marker: a run that starts at the same moment writes the marker first.
    there = [output_dir / name for name in (RUNS, STAGES) if os.path.lexists(output_dir / name)]
    owner = _owner(marker)
    if owner is not None and owner != flow:
        raise ConfigError(
            f"this folder holds runs of {owner!r}; give {flow!r} a folder of its own",
            code="foreign_output",
            where=str(output_dir),
        )
    for name, target in {LATEST: f"{RUNS}/", **published}.items():
        _refuse_foreign(output_dir / name, target)
    if owner is None:
        for path in there:
            raise ConfigError(
                f"{path.name!r} already exists and was not made by Gristmill; choose another output_dir",
                code="foreign_output",
                where=str(path),
            )
        write_file(marker, json.dumps({"flow": flow, "layout": 1}).encode() + b"\n")
    links.refuse_links(output_dir / RUNS)
    with storage_errors(output_dir, "create the stages folder"):
        # From now on input digests can be remembered here, so that the flow need not hash again.
        make_folder(output_dir / STAGES)


def _owner(marker: Path) -> str | None:
    try:
        content = parse_json(read_bytes(marker))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot read the folder's marker: {error}; another program may have written it",
            code="foreign_output",
            where=str(marker),
        ) from error
    return str(content.get("flow")) if isinstance(content, dict) else "something else"


def _refuse_foreign(path: Path, target: str) -> None:
    is_ours = (link_target(path) or "").startswith(target)
    if not is_ours and os.path.lexists(path):
        raise ConfigError(
            f"{path.name!r} already exists, was not made by Gristmill and is not replaced; "
            "move it away or choose another output_dir",
            code="foreign_output",
            where=str(path),
        )
