"""Keep the local server's files in a folder of the user, never of a project.

{folder}/server.json       what is running, and the token of the server; mode 0600
{folder}/server.log, worker.log, deploy.log
{folder}/prefect/          home of the server: its database, the UI's files
{folder}/files/            working directory of deployed runs: relative paths in their forms start here
{folder}/.lock             held while `up` or `down` runs
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tasks.server.http import answers, call
from tasks.server.processes import Started, private_file
from tasks.storage.atomic import storage_errors
from tasks.storage.flock import locked

STATE_VARIABLE = "GRISTMILL_STATE_DIR"


@dataclass(frozen=True)
class Record:
    """What `up` started.

    Attributes:
        url: of the API, with `/api`.
        token: what its requests must carry; empty for a server of a version that had none.
        server, worker: the processes.
        deployed: digest of the deployments on the server, empty if there are none.
    """

    url: str
    token: str = field(repr=False)
    server: Started
    worker: Started | None = None
    deployed: str = ""

    @property
    def ui(self) -> str:
        """The URL of the UI."""
        return self.url.removesuffix("/api")

    def call(self, path: str, body: Any = None, method: str | None = None, timeout_s: float = 10.0) -> Any:
        """Send a request to the API with the token, as `tasks.server.http.call` does."""
        return call(f"{self.url}/{path}", body, method, timeout_s, self.token)

    def answers(self, timeout_s: float = 2.0) -> bool:
        """Return whether the server is running and reports that it is healthy."""
        return self.server.running and answers(self.url, self.token, timeout_s)

    def ended(self) -> str | None:
        """Return that the server's process has ended, or `None` while it runs."""
        return None if self.server.running else "has ended"


@dataclass(frozen=True)
class State:
    """The state folder."""

    folder: Path
    record_path: Path = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "record_path", self.folder / "server.json")

    @classmethod
    def of_user(cls) -> State:
        """Return `$GRISTMILL_STATE_DIR`, else `gristmill` in `$XDG_STATE_HOME`, else in `~/.local/state`."""
        chosen = os.environ.get(STATE_VARIABLE)
        if chosen:
            return cls(Path(chosen).expanduser().absolute())
        home = os.environ.get("XDG_STATE_HOME", "")
        # The XDG specification says to ignore a relative path.
        base = Path(home) if Path(home).is_absolute() else Path.home() / ".local" / "state"
        return cls(base / "gristmill")

    @property
    def home(self) -> Path:
        """The home folder of the server."""
        return self.folder / "prefect"

    @property
    def files(self) -> Path:
        """The working directory of deployed runs."""
        return self.folder / "files"

    def log(self, name: str) -> Path:
        """Return the path of a process's log."""
        return self.folder / f"{name}.log"

    def create(self) -> None:
        """Create the folders, readable only by the user.

        Raises:
            StorageError: they cannot be created.
        """
        with storage_errors(self.folder, "create the state folder"):
            for folder in (self.folder, self.home, self.files):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Allow one `up` or `down` at a time; others wait. The kernel drops the lock of a killed process."""
        with locked(self.folder / ".lock", 0o600):
            yield

    def read(self) -> Record | None:
        """Read what `up` recorded; `None` if there is nothing readable."""
        try:
            raw: dict[str, Any] = json.loads(self.record_path.read_text(encoding="utf-8"))
            worker = raw["worker"]
            return Record(
                url=str(raw["url"]),
                token=str(raw.get("token", "")),
                server=Started(**raw["server"]),
                worker=Started(**worker) if worker else None,
                deployed=str(raw["deployed"]),
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, record: Record) -> None:
        """Write a record; a reader sees either the old one or this one.

        Raises:
            StorageError: writing failed.
        """
        temporary = self.record_path.with_suffix(".tmp")
        with storage_errors(self.record_path):
            with private_file(temporary) as file:
                file.write(json.dumps(asdict(record)).encode())
            temporary.replace(self.record_path)

    def forget(self) -> None:
        """Remove the record."""
        self.record_path.unlink(missing_ok=True)
