"""Index the pickle inside a legacy `.npy` shard without unpickling it.

`numpy.save` of an object array appends a pickle, and `numpy.load` would run whatever that pickle names. Here a small
machine walks the opcodes. It knows only those that numpy arrays, lists, dicts, tuples, numbers and strings need, and
it calls nothing; the few names it accepts (see `_NAMES`) reconstruct numpy arrays, on stand-ins. Any other name or
opcode is refused by name before it has any effect. The memo is a dict, so that no index can make it large, and
nothing is walked recursively.

Numbers are not stored: a list remembers where its integers are in the file, and `decode_ints` reads them on request.
So memory is a few hundred bytes per row, whereas unpickling takes 36 bytes per token.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

# Consecutive integers of one, two and four bytes, and booleans.
_INTS = re.compile(rb"(?:K.|M..|J....|[\x88\x89])*+", re.DOTALL)
_INT_OPCODES = frozenset(b"KMJ\x88\x89")
_MAX_NAME = 200
_MAX_LONG_BYTES = 8

_ARRAYS = ("numpy.core.multiarray", "numpy._core.multiarray")
_NAMES: dict[tuple[str, str], str] = {
    **{(module, name): name for module in _ARRAYS for name in ("_reconstruct", "scalar")},
    ("numpy", "ndarray"): "ndarray",
    ("numpy", "dtype"): "dtype",
    # How protocol 2 writes bytes.
    ("_codecs", "encode"): "encode",
}
_DTYPE = re.compile(r"[iu][1248]|b1|O8?")


class RefusedPickleError(ValueError):
    """The pickle requests something that lists of numbers do not need."""


class DamagedPickleError(ValueError):
    """The pickle is truncated, or was not written by `numpy.save`."""


@dataclass(frozen=True, slots=True)
class Run:
    """Integers at `[start, end)` of the file, as opcodes or, with a dtype, as raw numbers."""

    start: int
    end: int
    dtype: str | None = None


@dataclass(slots=True)
class IntList:
    """A list in the file: numbers as runs, single numbers as they are; anything else in `others`."""

    parts: list[Run | int] = field(default_factory=list)
    others: list[Any] = field(default_factory=list)

    def bytes(self) -> int:
        """Return the bytes its numbers take in the file; every number takes at least one."""
        return sum(part.end - part.start if isinstance(part, Run) else 1 for part in self.parts)


@dataclass(frozen=True, slots=True)
class _Name:
    name: str


@dataclass(slots=True)
class _Bytes:
    start: int
    end: int


@dataclass(slots=True)
class _Dtype:
    name: str
    order: str = "<"

    @property
    def is_object(self) -> bool:
        return self.name.startswith("O")

    @property
    def plain(self) -> str:
        # Little-endian unless stated otherwise.
        return (">" if self.order == ">" else "<") + self.name


@dataclass(slots=True)
class _Array:
    """An array being reconstructed; `values` is set together with its state."""

    shape: tuple[Any, ...] = ()
    values: IntList | None = None
    is_object: bool = False


class _NoNames(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise RefusedPickleError(f"{module}.{name}")


def decode_ints(data: Any, values: IntList) -> NDArray[np.int64]:
    """Decode the numbers of a list to int64."""
    parts: list[Any] = []
    for part in values.parts:
        if isinstance(part, int):
            parts.append([part])
        elif part.dtype is not None:
            parts.append(np.frombuffer(data[part.start : part.end], part.dtype))
        else:
            # There are only opcodes of `_INTS` here: the expression that found the run guarantees it.
            parts.append(_NoNames(BytesIO(b"(" + data[part.start : part.end] + b"l.")).load())
    arrays = [np.asarray(part, np.int64) for part in parts]
    return np.concatenate(arrays) if arrays else np.empty(0, np.int64)


def index_pickle(data: Any, start: int) -> tuple[list[Any], tuple[Any, ...], int]:
    """Index the contents of an object array.

    Args:
        data: the file, mapped or in memory.
        start: where the pickle begins.

    Returns:
        the items of the array, with an `IntList` for each list or array of numbers; its shape; where the pickle ends.

    Raises:
        RefusedPickleError: names what it requests.
        DamagedPickleError: it is truncated or not an object array.
    """
    machine = _Machine(data, start)
    try:
        array = machine.run()
    except (IndexError, KeyError, UnicodeDecodeError):
        raise DamagedPickleError(f"the pickle does not make sense at byte {machine.at:,}") from None
    if not isinstance(array, _Array) or not array.is_object or array.values is None:
        raise DamagedPickleError("the pickle is not an object array")
    if array.values.parts:
        raise DamagedPickleError("the object array contains numbers instead of one dict per row")
    return array.values.others, array.shape, machine.at


class _Machine:
    """The stack, the memo and the position of a walk over opcodes."""

    def __init__(self, data: Any, start: int) -> None:
        self.data = data
        self.at = start
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        while True:
            opcode = self.take(1)[0]
            if opcode == 0x2E:  # STOP
                return self.stack.pop()
            if opcode in _INT_OPCODES and self.in_list():
                start = self.at - 1
                found = _INTS.match(self.data, start)
                if found is None or found.end() == start:
                    raise DamagedPickleError("the file ends inside a number")
                self.at = found.end()
                self.stack.append(Run(start, self.at))
                continue
            step = _STEPS.get(opcode)
            if step is None:
                raise RefusedPickleError(f"pickle opcode {_opcode_name(opcode)}")
            step(self)

    def in_list(self) -> bool:
        """Return whether the next number is an item of a list: after its mark, or after other such numbers.

        After anything else it may be part of an item, such as the flags of a dtype.
        """
        mark = self.marks[-1] if self.marks else 0
        if mark == 0 or type(self.stack[mark - 1]) is not IntList:
            return False
        return len(self.stack) == mark or type(self.stack[-1]) is Run

    def take(self, length: int) -> bytes:
        start, self.at = self.at, self.at + length
        taken: bytes = self.data[start : self.at]
        if len(taken) < length:
            raise DamagedPickleError("the file ends inside the pickle")
        return taken

    def number(self, width: int, signed: bool = False) -> int:
        return int.from_bytes(self.take(width), "little", signed=signed)

    def skip(self, length: int) -> _Bytes:
        start, self.at = self.at, self.at + length
        if self.at > len(self.data):
            raise DamagedPickleError("the file ends inside the pickle")
        return _Bytes(start, self.at)

    def since_mark(self) -> list[Any]:
        mark = self.marks.pop()
        items = self.stack[mark:]
        del self.stack[mark:]
        return items

    def text(self, width: int) -> None:
        self.stack.append(self.take(self.short(self.number(width))).decode())

    def short(self, length: int) -> int:
        if length > 1 << 20:
            raise DamagedPickleError(f"a text of {length:,} bytes is too long for a packed shard")
        return length

    def long(self, width: int) -> None:
        length = self.number(width)
        if length > _MAX_LONG_BYTES:
            raise DamagedPickleError(f"a number of {length:,} bytes is too long for a token")
        self.stack.append(self.number(length, signed=True))

    def named(self) -> None:
        module, name = (self.line() for _ in range(2))
        self.resolve(module, name)

    def line(self) -> str:
        rest: bytes = self.data[self.at : self.at + _MAX_NAME]
        line, newline, _ = rest.partition(b"\n")
        if not newline:
            raise DamagedPickleError("a name in the pickle does not end")
        self.at += len(line) + 1
        return line.decode()

    def stacked_name(self) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self.resolve(module, name)

    def resolve(self, module: Any, name: Any) -> None:
        known = _NAMES.get((module, name)) if isinstance(module, str) and isinstance(name, str) else None
        if known is None:
            shown = f"{module}.{name}" if isinstance(module, str) and isinstance(name, str) else "no name"
            raise RefusedPickleError(shown[:_MAX_NAME])
        self.stack.append(_Name(known))

    def append(self) -> None:
        item = self.stack.pop()
        self.extend(self.stack[-1], [item])

    def appends(self) -> None:
        items = self.since_mark()
        self.extend(self.stack[-1], items)

    def extend(self, target: Any, items: list[Any]) -> None:
        if type(target) is not IntList:
            raise DamagedPickleError("something is appended to a value that is not a list")
        for item in items:
            if isinstance(item, Run | int):
                target.parts.append(int(item) if isinstance(item, int) else item)
            else:
                target.others.append(item)

    def set_items(self, pairs: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not dict or len(pairs) % 2 or not all(isinstance(k, str) for k in pairs[::2]):
            raise DamagedPickleError("a row is not a dict with text keys")
        target.update(zip(pairs[::2], pairs[1::2], strict=True))

    def set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.set_items([key, value])

    def reduce(self) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        if not isinstance(function, _Name) or type(arguments) is not tuple:
            raise RefusedPickleError("a call of something that is not a numpy function")
        make: Callable[[_Machine, tuple[Any, ...]], Any] | None = _CALLS.get(function.name)
        if make is None:
            raise RefusedPickleError(f"a call of {function.name}")
        try:
            self.stack.append(make(self, arguments))
        except (ValueError, TypeError, AttributeError) as error:
            if isinstance(error, RefusedPickleError | DamagedPickleError):
                raise
            raise DamagedPickleError(
                f"a call of {function.name} has arguments that numpy does not write"
            ) from None

    def build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if type(state) is not tuple or len(state) < 5:
            raise DamagedPickleError("the state of an array is not valid")
        if isinstance(target, _Dtype):
            if state[1] not in ("<", ">", "|", "="):
                raise DamagedPickleError("the state of a dtype is not valid")
            target.order = state[1]
        elif isinstance(target, _Array):
            self.build_array(target, state)
        else:
            raise RefusedPickleError("a state for something that is not an array")

    def build_array(self, array: _Array, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, values = state[:5]
        if not isinstance(dtype, _Dtype) or type(shape) is not tuple or fortran is not False:
            raise DamagedPickleError("the state of an array is not valid")
        array.shape, array.is_object = shape, dtype.is_object
        if dtype.is_object and type(values) is IntList:
            array.values = values
        elif not dtype.is_object and isinstance(values, _Bytes | bytes):
            length = len(values) if isinstance(values, bytes) else values.end - values.start
            if length % int(dtype.name[1:]):
                raise DamagedPickleError("the size of an array is not a multiple of its items")
            if isinstance(values, bytes):
                array.values = IntList(np.frombuffer(values, dtype.plain).astype(np.int64).tolist())
            else:
                array.values = IntList([Run(values.start, values.end, dtype.plain)])
        else:
            raise DamagedPickleError("the state of an array is not valid")

    def get(self, width: int) -> None:
        self.stack.append(self.memo[self.number(width)])

    def put(self, index: int) -> None:
        self.memo[index] = self.stack[-1]

    def tuple_of(self, length: int) -> None:
        items = tuple(self.stack[len(self.stack) - length :])
        if len(items) < length:
            raise DamagedPickleError("a tuple has more items than the stack")
        del self.stack[len(self.stack) - length :]
        self.stack.append(items)


def _make_array(machine: _Machine, arguments: tuple[Any, ...]) -> _Array:
    kind, shape, _ = arguments
    if kind != _Name("ndarray") or shape != (0,):
        raise RefusedPickleError("an array that is not a plain numpy array")
    return _Array()


def _make_dtype(machine: _Machine, arguments: tuple[Any, ...]) -> _Dtype:
    name = arguments[0]
    if not isinstance(name, str) or not _DTYPE.fullmatch(name):
        raise DamagedPickleError(f"numbers of type {str(name)[:20]!r} are not allowed in a packed shard")
    return _Dtype(name)


def _make_scalar(machine: _Machine, arguments: tuple[Any, ...]) -> int:
    dtype, raw = arguments
    plain = raw if isinstance(raw, bytes) else machine.data[raw.start : raw.end]
    if dtype.is_object or len(plain) != int(dtype.name[1:]):
        raise DamagedPickleError("the size of a numpy number does not match its type")
    return int(np.frombuffer(plain, dtype.plain).astype(np.int64)[0])


def _make_bytes(machine: _Machine, arguments: tuple[Any, ...]) -> bytes:
    text, codec = arguments
    if codec != "latin1":
        raise RefusedPickleError("_codecs.encode of something other than bytes")
    return bytes(text.encode("latin1"))


_CALLS: dict[str, Callable[[_Machine, tuple[Any, ...]], Any]] = {
    "_reconstruct": _make_array,
    "dtype": _make_dtype,
    "scalar": _make_scalar,
    "encode": _make_bytes,
}


def _push(make: Callable[[_Machine], Any]) -> Callable[[_Machine], None]:
    return lambda machine: machine.stack.append(make(machine))


_STEPS: dict[int, Callable[[_Machine], Any]] = {
    ord("\x80"): lambda m: m.take(1),  # PROTO
    ord("\x95"): lambda m: m.take(8),  # FRAME
    ord("("): lambda m: m.marks.append(len(m.stack)),
    ord("]"): _push(lambda m: IntList()),
    ord("}"): _push(lambda m: {}),
    ord(")"): _push(lambda m: ()),
    ord("t"): _push(lambda m: tuple(m.since_mark())),
    ord("\x85"): lambda m: m.tuple_of(1),
    ord("\x86"): lambda m: m.tuple_of(2),
    ord("\x87"): lambda m: m.tuple_of(3),
    ord("a"): lambda m: m.append(),
    ord("e"): lambda m: m.appends(),
    ord("s"): lambda m: m.set_item(),
    ord("u"): lambda m: m.set_items(m.since_mark()),
    ord("K"): _push(lambda m: m.number(1)),
    ord("M"): _push(lambda m: m.number(2)),
    ord("J"): _push(lambda m: m.number(4, signed=True)),
    ord("\x8a"): lambda m: m.long(1),
    ord("\x8b"): lambda m: m.long(4),
    ord("\x88"): _push(lambda m: True),
    ord("\x89"): _push(lambda m: False),
    ord("N"): _push(lambda m: None),
    ord("G"): _push(lambda m: float(np.frombuffer(m.take(8), ">f8")[0])),
    ord("\x8c"): lambda m: m.text(1),
    ord("X"): lambda m: m.text(4),
    ord("\x8d"): lambda m: m.text(8),
    ord("C"): _push(lambda m: m.skip(m.number(1))),
    ord("B"): _push(lambda m: m.skip(m.number(4))),
    ord("\x8e"): _push(lambda m: m.skip(m.number(8))),
    ord("h"): lambda m: m.get(1),
    ord("j"): lambda m: m.get(4),
    ord("q"): lambda m: m.put(m.number(1)),
    ord("r"): lambda m: m.put(m.number(4)),
    ord("\x94"): lambda m: m.put(len(m.memo)),
    ord("c"): lambda m: m.named(),
    ord("\x93"): lambda m: m.stacked_name(),
    ord("R"): lambda m: m.reduce(),
    ord("b"): lambda m: m.build(),
}


def _opcode_name(opcode: int) -> str:
    import pickletools

    known = {info.code: info.name for info in pickletools.opcodes}
    return known.get(chr(opcode), f"{opcode:#04x}")
