"""Write the records on standard input to one ArrayRecord file: a program of its own.

    python process.py FILE OPTIONS

The input is batches of records: their number, the size of each (int64, little-endian), then their bytes. A batch of
no records closes the file. If the input ends without one, its writer has died, and the file is left unclosed.

It is a separate process because ArrayRecord's writer holds the interpreter's lock while it compresses, which is half
of a gather's time: shards written in threads of one process would wait for each other. It imports only that writer,
so it starts in 30 ms and takes 15 MB.
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
    """Write all records of a binary file; return whether the file ended as it should."""
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
            # Otherwise two records, of up to 8 MB each, would be in memory.
            del record
    return False


def main() -> None:
    """Write the file that the arguments name."""
    # Ctrl-C reaches the whole process group, but the writer of the input decides when to end it or this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    module = importlib.import_module("array_record.python.array_record_module")
    path, options = sys.argv[1:]
    try:
        writer = module.ArrayRecordWriter(path, options)
        with open(sys.stdin.fileno(), "rb", buffering=_BUFFER_BYTES, closefd=False) as source:
            if not write_records(source, writer):
                # Skip the writer's destructor, which would close the file.
                os._exit(1)
        writer.close()
    except (RuntimeError, ValueError) as error:  # what the package raises for any status that is not OK
        print(error, file=sys.stderr, flush=True)
        os._exit(1)


if __name__ == "__main__":
    main()
