"""Find and verify published runs without importing anything heavy."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from schemas.errors import IntegrityError
from schemas.run import Receipt, RunManifest
from tasks.run.layout import MANIFEST, run_folder
from tasks.run.receipts import Verify, verify_files
from tasks.storage.names import link_target
from tasks.storage.reading import read_bytes


def read_manifest(folder: Path) -> RunManifest:
    """Read the manifest of a run folder.

    Raises:
        IntegrityError: it is missing, or is not a valid manifest.
    """
    path = folder / MANIFEST
    try:
        return RunManifest.model_validate_json(read_bytes(path))
    except FileNotFoundError:
        raise IntegrityError(
            "the run has no manifest; it is not complete", code="no_manifest", where=str(path)
        ) from None
    except IntegrityError as error:
        # The ledger does not add up.
        raise IntegrityError(error.message, code=error.code, where=str(path)) from None
    except (OSError, ValueError) as error:
        raise IntegrityError(
            f"the manifest cannot be read: {error}", code="bad_manifest", where=str(path)
        ) from error


def published_faults(folder: Path, manifest: RunManifest, verify: Verify) -> Iterator[IntegrityError]:
    """Yield an error for every output that is missing or has another size (or digest), and every wrong link."""
    for record in manifest.outputs:
        # `verify_files` takes the folder that the paths are relative to: for a manifest, the run folder.
        output = Receipt(task="publish", stage=manifest.run_hash, part=0, files=(record,))
        try:
            verify_files(output, folder, verify)
        except IntegrityError as error:
            yield error
    for name, target in manifest.links.items():
        link = folder / name
        if link_target(link) != target:
            yield IntegrityError(
                f"the link should point to {target!r}; run the flow again to repair it",
                code="missing_output",
                where=str(link),
            )


def check_published(folder: Path, manifest: RunManifest, verify: Verify) -> None:
    """Check that every output has its size (or digest) and every link its target.

    Raises:
        IntegrityError: naming the first file that differs from the manifest.
    """
    for fault in published_faults(folder, manifest, verify):
        raise fault


def completed_run(output_dir: Path, run_hash: str, verify: Verify) -> RunManifest | None:
    """Return the manifest of this run if it is complete and its published files verify, else `None`."""
    folder = run_folder(output_dir, run_hash)
    with contextlib.suppress(IntegrityError):
        manifest = read_manifest(folder)
        if manifest.run_hash == run_hash:
            check_published(folder, manifest, verify)
            return manifest
    return None
