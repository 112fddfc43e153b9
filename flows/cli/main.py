"""Parse and run commands. Only the commands that need Prefect, Arrow or numpy import them."""

from __future__ import annotations

import argparse
import contextlib
import logging
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from flows.cli import examples, housekeeping, server
from flows.cli.configs import load_config
from flows.cli.invocation import this_command
from flows.cli.plain import print_json
from flows.cli.registry import FLOWS, run_or_find
from flows.cli.summary import print_error, print_summary
from schemas.errors import (
    ConfigError,
    GristmillError,
    IntegrityError,
    WorkError,
    refuse_secrets,
    system_error,
)
from tasks.run.receipts import Verify
from tasks.runtime import stopping
from tasks.storage.names import write_to_nowhere

INTERRUPTED = 130
# As a shell reports the signal that ends other programs.
READER_GONE = 128 + signal.SIGPIPE
_AGAIN_S = 0.01


class _Version(argparse.Action):
    """Print the installed version; looked up only on demand, as it takes as long as all other imports."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import PackageNotFoundError, version

        try:
            print(f"gristmill {version('gristmill')}")
        except PackageNotFoundError as error:
            hint = "from the project's root, run: make setup"
            raise ConfigError(f"gristmill is not installed; {hint}", code="not_installed") from error
        parser.exit()


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        raise ConfigError(f"{message}; see: {self.prog} --help", code="usage")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    0 done, 1 failure, 2 usage, 3 integrity, 130 interrupted, 141 nobody reads the output any more.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    as_json = "--json" in arguments
    debug = "--debug" in arguments
    try:
        options = _parser().parse_args(arguments)
        for name, value in vars(options).items():
            if name != "sql":
                refuse_secrets(str(value), "the command line")
        logging.basicConfig(format="%(message)s", stream=sys.stderr, level=logging.WARNING)
        logging.getLogger("gristmill").setLevel(logging.DEBUG if debug else logging.INFO)
        for handler in logging.getLogger().handlers:
            handler.addFilter(_not_of_progress)
        run: Callable[[argparse.Namespace], int] = options.run
        code = run(options)
        print(end="", flush=True)
        return code
    except SystemExit:
        # Rich ends the program when its pipe breaks.
        if _nobody_reads():
            return READER_GONE
        raise
    except KeyboardInterrupt:
        print("gristmill: interrupted; run the same command again to resume", file=sys.stderr)
        return INTERRUPTED
    except GristmillError as error:
        _trace(debug)
        print_error(error, as_json)
        return error.exit_code
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _nobody_reads():
            return READER_GONE
        _trace(debug)
        known = system_error(error)
        if known is not None:
            print_error(known, as_json)
            return known.exit_code
        hint = "" if debug else "; run again with --debug for the traceback"
        print_error(WorkError(f"{type(error).__name__}: {error}{hint}", code="internal"), as_json)
        return WorkError.exit_code


def _nobody_reads() -> bool:
    """Return whether the program that read our output has ended, as `head` does; if so, write to nowhere from now on.

    A pipe of our own may break as well, which is a failure.
    """
    poll = select.poll()
    for stream in _streams():
        with contextlib.suppress(OSError, ValueError):
            poll.register(stream.fileno(), 0)
    gone = [descriptor for descriptor, events in poll.poll(0) if events & select.POLLERR]
    write_to_nowhere(gone)
    return bool(gone)


def _streams() -> list[TextIO]:
    """Return stdout and stderr, without one that was closed before we started."""
    return [stream for stream in (sys.stdout, sys.stderr) if stream is not None]


def _not_of_progress(record: logging.LogRecord) -> bool:
    """Leave out lines about single tasks: they are for the run's page, as the terminal has bars."""
    return record.name != "gristmill.progress"


def _trace(debug: bool) -> None:
    if debug:
        traceback.print_exc()


def _parser() -> _Parser:
    parser = _Parser(prog=this_command(), description="Turn raw corpora into training-ready data.")
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    common = _Parser(add_help=False)
    common.add_argument(
        "--json", action="store_true", help="print one JSON object as the last line of stdout"
    )
    common.add_argument("--debug", action="store_true", help="print tracebacks")
    for flow in FLOWS:
        command = commands.add_parser(flow.name, parents=[common, _run_options()], help=flow.summary)
        for name, field, summary in flow.options:
            command.add_argument(name, type=int, metavar="N", dest=field, help=summary)
        command.set_defaults(run=_run, flow=flow)
    validate = commands.add_parser(
        "validate", parents=[common], help="check a run, a folder of shards or a file"
    )
    validate.add_argument(
        "path",
        metavar="PATH",
        help="a run, an output folder, a folder of shards, a file, or a URI of packed Parquet",
    )
    validate.add_argument(
        "--level", choices=("quick", "full"), default="full", help="full, the default, reads every row"
    )
    validate.set_defaults(run=_validate)
    convert = commands.add_parser(
        "convert", parents=[common], help="convert packed shards to another storage format"
    )
    convert.add_argument("source", metavar="SRC", help="a shard, a folder of shards, or a run")
    convert.add_argument("target", metavar="DST", help="a new shard or folder")
    convert.add_argument(
        "--to", choices=("parquet", "memmap", "npy"), help="the format; may be left out if DST has its suffix"
    )
    convert.set_defaults(run=_convert)
    look = commands.add_parser(
        "inspect",
        parents=[common],
        help="show the content of a run, a folder of shards, a file or a tokenizer",
    )
    look.add_argument("path", metavar="PATH", help="what to show")
    look.add_argument("--rows", type=int, default=0, metavar="N", help="show N bins, records or documents")
    look.add_argument("--first", type=int, default=0, metavar="K", help="start at number K, counted from 0")
    look.add_argument("--split", metavar="NAME", help="take only this split: train, valid or test")
    look.add_argument("--dataset", metavar="NAME", help="take only this data set of a pack-sft run")
    look.add_argument("--tokenizer", metavar="DIR", help="tokenizer that shows packed bins as text")
    look.add_argument(
        "--sql",
        metavar="QUERY",
        help="run a SELECT over bins, measurements, documents or rejects; dataset, split, path and shard say where a "
        "row is (shard_path and so on, if the data have a column path)",
    )
    look.add_argument(
        "--sql-memory",
        type=int,
        default=2048,
        metavar="MIB",
        help="most memory of a query in MiB; default 2048",
    )
    look.add_argument(
        "--sql-timeout",
        type=float,
        default=300,
        metavar="S",
        help="end a query after so many seconds; default 300",
    )
    look.set_defaults(run=_inspect)
    examples.add_commands(commands, common)
    demo = commands.add_parser("demo", parents=[common], help="run all flows on a little generated data")
    demo.add_argument(
        "--output-dir", default="demo-output", metavar="DIR", help="folder to write to; default demo-output"
    )
    demo.set_defaults(run=_demo)
    housekeeping.add_commands(commands, common)
    server.add_commands(commands, common)
    return parser


def _run_options() -> _Parser:
    options = _Parser(add_help=False)
    options.add_argument("config", metavar="CONFIG", help="configuration, a YAML file")
    options.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        dest="overrides",
        help="override a field of the configuration, for example workers=4; may be repeated",
    )
    options.add_argument("--output-dir", metavar="DIR", help="override the output_dir of the configuration")
    options.add_argument(
        "--runner",
        choices=("threads", "processes"),
        default="threads",
        help="run tasks in threads, the default, or processes",
    )
    options.add_argument("--workers", type=int, metavar="N", help="how many tasks run at once")
    options.add_argument(
        "--address",
        metavar="URL",
        help="API of the Prefect server to use; default: the configured one, that of `up`, or an embedded one",
    )
    options.add_argument(
        "--verify",
        type=Verify,
        choices=list(Verify),
        default=Verify.SIZE,
        help="how to check cached results before reusing them",
    )
    options.add_argument("--force", action="store_true", help="run every step again, even if it is cached")
    return options


def _run(options: argparse.Namespace) -> int:
    raw = load_config(options.config, options.overrides)
    if options.output_dir is not None:
        raw["output_dir"] = options.output_dir
    if options.workers is not None:
        raw["workers"] = options.workers
    for _, field, _ in options.flow.options:
        if getattr(options, field) is not None:
            raw[field] = getattr(options, field)
    config = options.flow.parse(raw)
    summary = run_or_find(
        options.flow, config, options.runner, options.verify, options.force, options.address
    )
    print_summary(summary, options.json)
    return 0


def _validate(options: argparse.Namespace) -> int:
    from tasks.outputs.validate import validate_path

    verdict = validate_path(options.path, full=options.level == "full")
    if options.json:
        print_json({"ok": verdict.ok, **verdict.model_dump(mode="json")})
    else:
        counts = ", ".join(f"{value:,} {name}" for name, value in verdict.counts.items())
        print(f"{verdict.path}: {verdict.kind}, {counts}")
        for fault in verdict.faults:
            times = f" ({fault.count:,} rows)" if fault.count > 1 else ""
            print(f"  {fault.level}: {fault.where}: {fault.rule}: {fault.detail}{times}")
        print("valid" if verdict.ok else "NOT VALID")
    return 0 if verdict.ok else IntegrityError.exit_code


def _inspect(options: argparse.Namespace) -> int:
    from flows.cli.inspect import inspect

    return inspect(options)


def _convert(options: argparse.Namespace) -> int:
    from flows.cli.convert import print_conversion
    from schemas.sft import StorageFormat
    from tasks.outputs.convert import convert_shards

    to = StorageFormat(options.to) if options.to else None
    print_conversion(convert_shards(Path(options.source), Path(options.target), to), options.json)
    return 0


def _demo(options: argparse.Namespace) -> int:
    from flows.cli.demo import run_demo

    return run_demo(Path(options.output_dir), options.json)


def terminate(signum: int, frame: object) -> None:
    """Treat SIGTERM as an interrupt: the run stops between files and can be resumed.

    Raises:
        KeyboardInterrupt: always.
    """
    raise KeyboardInterrupt


def interrupt_again(unraisable: sys.UnraisableHookArgs) -> None:
    """Interrupt this process once more if the interrupt came in a destructor, where Python prints and forgets it."""
    if not issubclass(unraisable.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)
        return
    # When the destructor has ended. SIGINT may be ignored, in the background of a shell.
    main_thread = threading.main_thread().ident or 0
    timer = threading.Timer(_AGAIN_S, signal.pthread_kill, (main_thread, signal.SIGTERM))
    timer.daemon = True
    timer.start()


def entry() -> int:
    """Run `main` in a process of its own, which SIGTERM ends as Ctrl-C does."""
    signal.signal(signal.SIGTERM, terminate)
    sys.unraisablehook = interrupt_again
    code = main()
    try:
        for stream in _streams():
            stream.flush()
    except OSError:
        # The error has been reported as far as possible; Python would report it again at exit.
        write_to_nowhere([stream.fileno() for stream in _streams()])
    # Python would wait for threads in the middle of a file; those of an interrupted command only read.
    if stopping.unsent or code == INTERRUPTED:
        stopping.end_now(code)
    return code
