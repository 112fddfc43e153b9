"""A program that writes one ArrayRecord file of the records on its standard input.

    python process.py FILE OPTIONS

Input: batches of records: their number, the size of each (int64, little-endian), then their bytes. A batch of no
records closes the file. If the input ends without one, whoever wrote it died: the file stays as it is, unclosed.

A process of its own, because ArrayRecord's writer holds the interpreter's lock while it compresses, half of what a
gather takes: shards written in threads of one process wait for each other. It imports nothing but that writer, so it
starts in 30 ms and takes 15 MB.
"""

from __future__ import annotations

import importlib
import os
import signal
import struct
import sys
from typing import Any

_BUFFER_BYTES = 1 << 20


def write_records(source: Any, writer: Any) -> bool:
    """Pass on all records of a binary file; whether it ended as it should."""
    while len(head := source.read(8)) == 8:
        (count,) = struct.unpack("<q", head)
        if not count:
            return True
        sizes = source.read(8 * count)
        if len(sizes) < 8 * count:
            return False
        for size in struct.unpack(f"<{count}q", sizes):
            record = source.read(size)
            if len(record) < size:
                return False
            writer.write(record)
            # Two of 8 MB are one too many.
            del record
    return False


def main() -> None:
    # Ctrl-C reaches the whole group; whoever writes the input decides, and ends it or this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    module = importlib.import_module("array_record.python.array_record_module")
    path, options = sys.argv[1:]
    try:
        writer = module.ArrayRecordWriter(path, options)
        with open(sys.stdin.fileno(), "rb", buffering=_BUFFER_BYTES, closefd=False) as source:
            if not write_records(source, writer):
                # Not through the writer's end, which closes the file.
                os._exit(1)
        writer.close()
    except (RuntimeError, ValueError) as error:  # what the package raises for any status that is not OK
        print(error, file=sys.stderr, flush=True)
        os._exit(1)


if __name__ == "__main__":
    main()
