"""Read the header of a `.npy` file without trusting it: the file may come from anywhere.

`numpy.load` reads a header of any declared size before checking it, and unpickles object arrays if allowed.
Only magic, version, length and a literal of at most 10,000 bytes (numpy's own limit) are read here.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import BinaryIO

_MAGIC = b"\x93NUMPY"
_MAX_HEADER_BYTES = 10_000


@dataclass(frozen=True)
class NpyHeader:
    """What a `.npy` file declares to contain.

    Attributes:
        descr: numpy's name of the dtype, such as `<i4` or `|O`.
        shape: of the array; `offset`: where its data begins, in bytes.
    """

    descr: str
    shape: tuple[int, ...]
    offset: int


def read_npy_header(file: BinaryIO) -> NpyHeader:
    """Read the header of a C-ordered array of one plain dtype.

    Raises:
        ValueError: this is not such a file, or its header is cut short or too large.
    """
    start = file.read(8)
    if start[:6] != _MAGIC:
        raise ValueError("it does not begin like a .npy file")
    if len(start) < 8 or start[6] not in (1, 2, 3):
        raise ValueError("its .npy version is not 1, 2 or 3")
    width = 2 if start[6] == 1 else 4
    raw_length = file.read(width)
    length = int.from_bytes(raw_length, "little")
    if length > _MAX_HEADER_BYTES:
        raise ValueError(f"its header claims {length:,} bytes; at most {_MAX_HEADER_BYTES:,} are read")
    header = file.read(length)
    if len(raw_length) < width or len(header) < length:
        raise ValueError("the file ends inside its header")
    try:
        fields = ast.literal_eval(header.decode("utf-8" if start[6] == 3 else "latin1").strip())
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        raise ValueError("its header is not a Python literal") from None
    if not isinstance(fields, dict) or set(fields) != {"descr", "fortran_order", "shape"}:
        raise ValueError("its header does not have the keys descr, fortran_order and shape")
    descr, shape = fields["descr"], fields["shape"]
    if not isinstance(descr, str) or fields["fortran_order"] is not False:
        raise ValueError("it does not hold a C-ordered array of one plain type")
    if not isinstance(shape, tuple) or not all(type(n) is int and 0 <= n < 2**63 for n in shape):
        raise ValueError("its shape is not a tuple of whole numbers")
    return NpyHeader(descr, shape, 8 + width + length)
