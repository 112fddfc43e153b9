"""Two and three drivers work on one output folder at once, with the same and other settings, and `prune` between."""

from __future__ import annotations

import signal

from torture.kit import Work
from torture.room import Ended, Failed, Room

_PROCESS_S = 100.0


def attempt(room: Room) -> None:
    """Drivers in forks, which take no locks but that of publishing; at times real ones with a server."""
    work = room.kit.work(room.number)
    if room.kit.server is not None and room.number % 12 == 11:
        _processes(room, work, str(room.kit.server))
    else:
        _forks(room, work)


def _forks(room: Room, work: Work) -> None:
    out = room.folder / "out"
    many = room.rng.choice((2, 2, 3))
    same = room.rng.random() < 0.5
    pruning = room.rng.choice(("no prune", "prune", "prune of everything"))
    room.what = f"{many} drivers, {'one configuration' if same else 'two configurations'}, {pruning}"
    if room.rng.random() < 0.5:
        work.finish(room, out, changed=room.rng.random() < 0.5)
    drivers = [room.begin(*work.arguments(room, out, changed=not same and n % 2 == 1)) for n in range(many)]
    age = "0s" if pruning == "prune of everything" else "7d"
    for _ in range(0 if pruning == "no prune" else room.rng.randint(1, 4)):
        pruned = room.judged(room.run("prune", out, "--min-age", age))
        # Before the first driver has claimed it, there is no output folder.
        if not pruned.ok and pruned.error != "missing_path" and age != "0s":
            raise Failed("drivers", f"prune: {pruned.said}")
    ends: list[Ended] = []
    killed = room.rng.randrange(many) if room.rng.random() < 0.3 else None
    for number, driver in enumerate(drivers):
        kill = (work.seconds * room.rng.random(), signal.SIGKILL) if number == killed else None
        ends.append(room.judged(room.wait(driver, kill), killed=kill is not None))
        work.check_view(out)
    room.done += many
    for number, ended in enumerate(ends):
        # Pruning everything while a driver works may end it, but must not break what is published.
        if not ended.ok and number != killed and age != "0s":
            raise Failed("drivers", f"driver {number} of {many}: {ended.said}")
    work.finish(room, out, changed=not same)
    work.finish(room, out)


def _processes(room: Room, work: Work, state: str) -> None:
    """Real ones, with the locks of tasks."""
    room.what = "2 real drivers, local server"
    out = room.folder / "out"
    arguments = work.arguments(
        room, out, "--runner", room.rng.choice(("threads", "processes")), "--workers", "2"
    )
    drivers = [room.start(*arguments, GRISTMILL_STATE_DIR=state) for _ in range(2)]
    for driver in drivers:
        ended = room.judged(room.wait(driver, timeout_s=_PROCESS_S))
        room.done += 1
        if not ended.ok:
            raise Failed("drivers", ended.said)
    room.orphans()
    work.check_whole(room, out)
