"""Files of a finished output folder are damaged: `validate` finds it, and another run repairs it or says what to do.

Each flow's files are gone through in turn, so that no kind of file is left out: of stages, receipts, runs, manifests,
rejects, reports, links, locks.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import workloads
from support import state_of
from torture.room import Failed, Room

# What a repair may refuse to remove, since somebody may have put it there on purpose.
_FOREIGN = ("folder", "link", "broken link", "fifo")
_NOT_PUBLISHED = ("stages", "")


def attempt(room: Room) -> None:
    """One damage to a copy of a finished output folder."""
    work = room.kit.work(room.number)
    out = workloads.clone(work.base, room.folder / "out")
    elsewhere = room.folder / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "theirs").write_text("theirs" * 50)
    kinds = _kinds(out)
    turn = room.number // len(room.kit.works)
    # In an order of its own, so that a short campaign sees files of all sorts.
    kind = Random(work.name).sample(list(kinds), len(kinds))[turn % len(kinds)]
    path = room.rng.choice(kinds[kind])
    name = list(_DAMAGES)[(turn // len(kinds) + turn) % len(_DAMAGES)]
    relative = path.relative_to(out).as_posix()
    room.what = f"{name}: {_group(relative)}"
    room.notes.append(relative)
    same_size = _damage(room, path, kinds[kind], name, elsewhere)
    before = state_of(elsewhere)
    room.done += 1
    if _is_published(relative):
        verdict = room.judged(room.run("validate", out))
        # A missing link at the top is a warning: a run that was killed just after it moved `latest` lacks it.
        if verdict.ok and not ("/" not in relative and "is missing" in verdict.out):
            raise Failed("silent success", f"validate does not find {name} of {relative}")
    else:
        room.judged(room.run("validate", out))
    for command in (("runs", str(out)), ("inspect", str(out))):
        if room.rng.random() < 0.2:
            room.judged(room.run(*command))
    # By size alone, a flipped bit goes unnoticed: documented.
    if room.rng.random() < 0.5:
        ended = room.judged(work.run(room, out))
        if ended.ok and not same_size:
            work.check_whole(room, out)
    ended = room.judged(work.run(room, out, "--verify", "sha256"))
    room.notes.append(ended.said)
    if ended.ok:
        work.check_whole(room, out)
    else:
        if name not in _FOREIGN and "/" in relative:
            raise Failed("not repaired", f"{name} of {relative}: {ended.said}")
        _remove(path)
        if relative == ".gristmill.json":
            shutil.copy2(work.base / relative, path)
        work.finish(room, out, "--verify", "sha256")
    if state_of(elsewhere) != before:
        raise Failed("link followed", f"{relative} as a link: what it leads to was changed")


def _kinds(out: Path) -> dict[str, list[Path]]:
    """Files and links, by what they are."""
    kinds: dict[str, list[Path]] = {}
    for path in sorted(out.rglob("*")):
        if path.is_symlink() or path.is_file():
            kinds.setdefault(_kind(path.relative_to(out).as_posix()), []).append(path)
    return kinds


def _kind(relative: str) -> str:
    return re.sub(r"[0-9a-f]{16}|\d+", "#", relative)


def _group(relative: str) -> str:
    top, _, rest = relative.partition("/")
    if not rest:
        return relative
    if top == "stages":
        return (
            "a lock"
            if rest.endswith(".lock")
            else "a receipt"
            if "/receipts/" in rest
            else "a file of a stage"
        )
    name = rest.partition("/")[2]
    if name in ("manifest.json", "config.json", "inputs.json", "report.html"):
        return name
    return "rejects" if name.startswith("rejects/") else "an output"


def _is_published(relative: str) -> bool:
    """Whether it is part of the run, so that `validate` of the output folder has to find it."""
    return (
        not relative.startswith("stages/")
        and relative != ".gristmill.json"
        and not relative.endswith(".lock")
    )


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _write(path: Path, data: bytes) -> None:
    """Into the same file, as a faulty disk does: its other names change too."""
    if path.is_symlink():
        path.unlink()
    path.write_bytes(data)


def _flip(room: Room, data: bytes) -> bytes:
    changed = bytearray(data or b"\0")
    for _ in range(room.rng.choice((1, 1, 1, 8))):
        changed[room.rng.randrange(len(changed))] ^= 1 << room.rng.randrange(8)
    return bytes(changed) if bytes(changed) != data else data + b"\0"


def _damage(room: Room, path: Path, alike: list[Path], name: str, elsewhere: Path) -> bool:
    """Do it; returns whether size and kind are what they were."""
    data = path.read_bytes() if path.is_file() else b""
    is_link = path.is_symlink()
    if name == "swap":
        others = (
            [other for other in alike if other != path and other.read_bytes() != data]
            if path.is_file()
            else []
        )
        if not others or is_link:
            name = "flip"
        else:
            other = room.rng.choice(others)
            content = other.read_bytes()
            _write(other, data)
            _write(path, content)
            return len(content) == len(data)
    if name == "flip":
        # A file in place of a link is taken for a copy of what the link leads to, by its size alone too.
        _write(path, _flip(room, data))
        return path.stat().st_size == len(data)
    _DAMAGES[name](room, path, data, elsewhere)
    return False


def _replace(path: Path, make: Callable[[], object]) -> None:
    _remove(path)
    make()


_DAMAGES: dict[str, Callable[[Room, Path, bytes, Path], object]] = {
    "flip": lambda room, path, data, _: None,
    "truncate": lambda room, path, data, _: _write(path, data[: room.rng.randrange(max(len(data), 1))]),
    "delete": lambda room, path, data, _: path.unlink(),
    "empty": lambda room, path, data, _: _write(path, b""),
    "grow": lambda room, path, data, _: _write(path, data + room.rng.randbytes(room.rng.randint(1, 300))),
    "swap": lambda room, path, data, _: None,
    "folder": lambda room, path, data, _: _replace(path, path.mkdir),
    "link": lambda room, path, data, elsewhere: _replace(path, lambda: path.symlink_to(elsewhere / "theirs")),
    "broken link": lambda room, path, data, elsewhere: _replace(
        path, lambda: path.symlink_to(elsewhere / "none")
    ),
    "fifo": lambda room, path, data, _: _replace(path, lambda: os.mkfifo(path)),
}
