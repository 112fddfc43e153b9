"""Say where a run lies: in its stage folder, or in the spill folder, of which the stage folder then has a record."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from schemas.errors import IntegrityError
from schemas.run import FileRecord
from tasks.run.elsewhere import read_elsewhere, record_path_of, write_elsewhere
from tasks.run.layout import stage_folder
from tasks.storage.atomic import AtomicFile, storage_errors
from tasks.storage.links import refuse_link
from tasks.storage.names import remove_path


@dataclass(frozen=True)
class RunRef:
    """Locate a run by its stage and its number in the stage."""

    stage: str
    number: int

    def path(self, root: Path) -> Path:
        """Return the run's place below an output directory; with a spill folder a record of the file is there."""
        return stage_folder(root, self.stage) / f"run-{self.number:06d}.spill"

    def found(self, root: Path) -> Path:
        """Return where the run's file is.

        Raises:
            IntegrityError: its record is damaged.
        """
        path = self.path(root)
        try:
            return Path(read_elsewhere(record_path_of(path)).path)
        except FileNotFoundError:
            return path
        except OSError as error:
            raise damaged(path, str(error.strerror)) from error


def place_of(root: Path, spill: Path | None, ref: RunRef) -> Path:
    """Return where to write a run, and forget where an earlier one was.

    Args:
        root: the output directory.
        spill: the spill folder, if the file belongs there.

    Raises:
        StorageError: the record of the earlier one cannot be removed.
        ConfigError: `foreign_output`: a folder of ours in the spill folder is a link.
    """
    path = ref.path(root)
    target = path if spill is None else spill / path.relative_to(root)
    for folder in (target.parent.parent, target.parent):
        refuse_link(folder)
    with storage_errors(path, "remove"):
        remove_path(record_path_of(path))
    return target


def record_of(root: Path, ref: RunRef, file: AtomicFile) -> FileRecord:
    """Return the record of a run, or of the file that says where it is, relative to `root`.

    Raises:
        StorageError: the file cannot be written.
    """
    path = ref.path(root)
    record = file.record(file.path.parent)
    # The spill folder may be the output folder.
    if path.exists() and path.samefile(file.path):
        return record.model_copy(update={"path": path.relative_to(root).as_posix()})
    return write_elsewhere(path, record.model_copy(update={"path": str(file.path)})).record(root)


def damaged(path: Path, what: str) -> IntegrityError:
    """Return the error of a run that cannot be read."""
    return IntegrityError(
        f"a sorted run cannot be read: {what}; remove its stage and run again",
        code="broken_spool",
        where=str(path),
    )
