"""Legacy `.npy`: what numpy writes is read, and nothing a pickle asks for beyond that ever happens."""

from __future__ import annotations

import os
import pickle
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sft.shard_files import COLUMNS, foreign_npy, npy_of, random_rows, rows_of

from tasks.sft.shards.find import open_shard
from tasks.sft.shards.npy_reader import TRAILER
from tasks.sft.shards.shard import BadShardError, ShardMetadata

GOOD = {"input_ids": [5, 300, 70_000], "loss_mask": [1, 1, 0], "seq_start_id": [0, 1]}


@pytest.mark.parametrize("protocol", [2, 3, 4, 5, None])
def test_every_protocol_numpy_has_used_is_read(protocol: int | None, tmp_path: Path) -> None:
    # Long enough for several frames, and for lists in several batches of 1,000.
    rows = random_rows(40, longest=5000, seed=1)
    with open_shard(foreign_npy(tmp_path / "s.npy", rows, protocol)) as shard:
        assert rows_of(shard, rows=7) == rows


@pytest.mark.parametrize(
    ("ids", "mask", "starts"),
    [
        (np.array([1, 2, 3]), np.array([0, 1, 0], np.uint8), np.array([0, 2], np.int32)),
        (np.array([1, 2, 3], ">i8"), np.array([False, True, False]), np.array([0, 2], ">u2")),
        ([np.int64(1), 2, np.int32(3)], [np.bool_(False), True, False], [0, np.uint16(2)]),
        ([1, 2, 3], [False, True, False], [0, 2]),
    ],
    ids=["arrays", "other arrays", "numpy numbers", "booleans"],
)
@pytest.mark.parametrize("protocol", [2, 4])
def test_arrays_and_numpy_numbers_stand_for_lists(
    ids: Any, mask: Any, starts: Any, protocol: int, tmp_path: Path
) -> None:
    row = {"input_ids": ids, "loss_mask": mask, "seq_start_id": starts, "note": "kept by nobody", "n": 1.5}
    with open_shard(foreign_npy(tmp_path / "s.npy", [row, GOOD], protocol)) as shard:
        expected = ([1, 2, 3], [0, 1, 0], [0, 2])
        assert rows_of(shard) == [expected, tuple(GOOD[name] for name in COLUMNS)]


def test_a_list_that_two_rows_share_is_read_twice(tmp_path: Path) -> None:
    mask = [0] * 3
    rows = [{**GOOD, "loss_mask": mask}, {**GOOD, "loss_mask": mask, "input_ids": list(range(1000, 1003))}]
    with open_shard(foreign_npy(tmp_path / "s.npy", rows)) as shard:
        assert [row[1] for row in rows_of(shard)] == [mask, mask]


class Calls:
    """Pickles as a call of `function`."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def harm(tmp_path: Path) -> tuple[Path, str]:
    """A file that must not appear, and the shell command that would make it."""
    return tmp_path / "harm", f"touch {tmp_path / 'harm'}"


MALICIOUS: dict[str, tuple[Callable[[str], Any], str]] = {
    "os.system": (lambda command: Calls(os.system, command), "posix.system"),
    "eval": (lambda command: Calls(eval, f"__import__('os').system({command!r})"), "builtins.eval"),
    "exec": (lambda command: Calls(exec, f"__import__('os').system({command!r})"), "builtins.exec"),
    "getattr": (lambda command: Calls(getattr, "os", "system"), "builtins.getattr"),
    "subprocess": (lambda command: Calls(subprocess.getoutput, command), "subprocess.getoutput"),
    "nested in a list": (lambda command: {**GOOD, "input_ids": [1, Calls(os.system, command)]}, "posix.system"),
    "nested in a call": (lambda command: Calls(np.dtype, Calls(os.system, command)), "posix.system"),
    "in a key nobody reads": (lambda command: {**GOOD, "note": Calls(os.system, command)}, "posix.system"),
    "numpy's own eval": (lambda command: Calls(np.load, "other.npy"), "numpy.load"),
    "operator": (lambda command: Calls(__import__("operator").attrgetter("system"), "os"), "operator.attrgetter"),
    "a bytearray": (lambda command: {**GOOD, "input_ids": bytearray(5)}, "builtins.bytearray"),
    "a set": (lambda command: {**GOOD, "input_ids": {1, 2}}, "EMPTY_SET"),
    "an object of a class": (lambda command: Path("x"), "pathlib"),
}  # fmt: skip


@pytest.mark.parametrize("case", MALICIOUS)
@pytest.mark.parametrize("protocol", [2, 4])
def test_anything_but_numpy_is_refused_by_name_and_not_run(case: str, protocol: int, tmp_path: Path) -> None:
    make, name = MALICIOUS[case]
    file, command = harm(tmp_path)
    row = make(command)
    array = np.empty(2, object)
    array[:] = [GOOD, row]
    shard = npy_of(tmp_path / "s.npy", pickle.dumps(array, protocol), 2)
    with pytest.raises(BadShardError) as caught:
        rows_of(open_shard(shard))
    assert caught.value.code == "unsafe_pickle" and caught.value.where == str(shard)
    # Protocol 2 has Python 2's names for modules, and no opcode for sets.
    last = "set" if case == "a set" else name.rpartition(".")[2]
    assert (name if protocol == 4 else last) in caught.value.message
    assert not file.exists()


def opcodes(body: bytes, before: bytes = b"\x80\x04") -> bytes:
    return before + body + b"."


HANDMADE: dict[str, tuple[bytes, str]] = {
    # The three ways to a name: on the stack, in the text, and by the stack's own values.
    "global": (opcodes(b"cos\nsystem\n(X\x02\x00\x00\x00id\x85R"), "os.system"),
    "inst": (opcodes(b"(X\x02\x00\x00\x00idios\nsystem\n"), "opcode INST"),
    "obj": (opcodes(b"(cos\nsystem\nX\x02\x00\x00\x00ido"), "os.system"),
    "newobj": (opcodes(b"cnumpy\nndarray\n)\x81"), "opcode NEWOBJ"),
    "extension": (opcodes(b"\x82\x01"), "opcode EXT1"),
    "persistent": (opcodes(b"Pid\n"), "opcode PERSID"),
    "memo of the dict": (opcodes(b"}\x94cbuiltins\ngetattr\n"), "builtins.getattr"),
    "a dotted name": (opcodes(b"\x8c\x05numpy\x8c\x0edtype.__init__\x93"), "numpy.dtype.__init__"),
    "a name that is a number": (opcodes(b"K\x01K\x02\x93"), "no name"),
    "ndarray called": (opcodes(b"cnumpy\nndarray\nJ\xff\xff\xff\x7f\x85R"), "a call of ndarray"),
    "a big array": (
        opcodes(b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nJ\xff\xff\xff\x7f\x85C\x01b\x87R"),
        "an array that is not a plain numpy array",
    ),
    "the state of a dict": (opcodes(b"}(K\x01K\x02K\x03K\x04K\x05tb"), "a state for something"),
    "rot13": (opcodes(b"c_codecs\nencode\n\x8c\x01x\x8c\x05rot13\x86R"), "_codecs.encode"),
    "no opcode": (opcodes(b"\xff"), "opcode 0xff"),
}  # fmt: skip


@pytest.mark.parametrize("case", HANDMADE)
def test_handmade_pickles_are_refused_by_name(case: str, tmp_path: Path) -> None:
    pickled, name = HANDMADE[case]
    with pytest.raises(BadShardError) as caught:
        rows_of(open_shard(npy_of(tmp_path / "s.npy", pickled, 1)))
    assert caught.value.code == "unsafe_pickle" and name in caught.value.message


def shares(doubling: int) -> bytes:
    """Rows that all are one list of `doubling` numbers: small in the file, large once expanded."""
    row = {**GOOD, "input_ids": list(range(300, 300 + doubling))}
    array = np.empty(doubling, object)
    array[:] = [row] * doubling
    return pickle.dumps(array, 4)


BOMBS: dict[str, tuple[bytes, int]] = {
    # Python's own unpickler fills 2^31 entries for this one index.
    "a memo index of 2^31": (opcodes(b"]r\xff\xff\xff\x7f"), 0),
    "a memo index that is not there": (opcodes(b"j\xff\xff\xff\x7f"), 0),
    "a text of 2^60 bytes": (opcodes(b"\x8d" + struct.pack("<Q", 1 << 60)), 0),
    "bytes of 2^60": (opcodes(b"\x8e" + struct.pack("<Q", 1 << 60)), 0),
    "a number of 2^31 bytes": (opcodes(b"\x8b\xff\xff\xff\x7f"), 0),
    "tuples of tuples": (opcodes(b")" + b"2\x86" * 60), 0),
    "tuples of tuples by memo": (opcodes(b")\x94" + b"".join(b"h%ch%c\x86\x94" % (i, i) for i in range(200))), 0),
    "lists within lists": (opcodes(b"(" * 100_000 + b"]" * 100_000), 0),
    "rows that share one list": (shares(20_000), 20_000),
    "a list within itself": (opcodes(b"]\x94h\x00a"), 1),
}  # fmt: skip


@pytest.mark.parametrize("case", BOMBS)
def test_bombs_fizzle(case: str, tmp_path: Path) -> None:
    pickled, rows = BOMBS[case]
    with pytest.raises(BadShardError):
        rows_of(open_shard(npy_of(tmp_path / "s.npy", pickled, rows)))


def test_every_way_to_cut_or_flip_a_file_is_an_error_or_reads_as_numbers(tmp_path: Path) -> None:
    shard = foreign_npy(tmp_path / "s.npy", [GOOD, GOOD])
    whole = shard.read_bytes()
    for length in range(len(whole)):
        shard.write_bytes(whole[:length])
        with pytest.raises(BadShardError):
            rows_of(open_shard(shard))
    rng = np.random.default_rng(0)
    for _ in range(2000):
        damaged = bytearray(whole)
        damaged[int(rng.integers(0, len(whole)))] = int(rng.integers(0, 256))
        shard.write_bytes(damaged)
        try:
            rows_of(open_shard(shard))
        except BadShardError:
            continue


HEADERS: dict[str, tuple[bytes, str]] = {
    "no magic": (b"PAR1" + b"\0" * 100, "does not begin"),
    "another version": (b"\x93NUMPY\x09\x00" + b"\0" * 100, "version"),
    "a header of 4 GB": (b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + b" " * 100, "claims 4,294,967,295 bytes"),
    "a header cut short": (b"\x93NUMPY\x01\x00\x70\x00{'descr': '|O'", "inside its header"),
    "a header that calls": (b"\x93NUMPY\x01\x00\x10\x00__import__('os')", "not a Python literal"),
    "a header of brackets": (b"\x93NUMPY\x01\x00\x10\x27" + b"[" * 10_000, "not a Python literal"),
    "a header with a key too many": (
        b"\x93NUMPY\x01\x00\x3f\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,), 'x': 1} \n",
        "does not have the keys",
    ),
}


@pytest.mark.parametrize("case", HEADERS)
def test_bad_headers_are_refused(case: str, tmp_path: Path) -> None:
    content, said = HEADERS[case]
    shard = tmp_path / "s.npy"
    shard.write_bytes(content)
    with pytest.raises(BadShardError) as caught:
        open_shard(shard).num_bins  # noqa: B018
    assert said in caught.value.message


WRONG_ROWS: dict[str, tuple[Any, str]] = {
    "a number for a row": (7, "array contains numbers"),
    "a list for a row": ([1, 2], "'input_ids' is missing"),
    "a text for a list": ({**GOOD, "input_ids": "abc"}, "'input_ids' is missing or not a list"),
    "a missing list": ({"input_ids": [1], "loss_mask": [0]}, "'seq_start_id' is missing"),
    "floats": ({**GOOD, "loss_mask": [1.0, 0.0]}, "'loss_mask' contains float"),
    "a float array": ({**GOOD, "loss_mask": np.zeros(3)}, "type 'f8'"),
    "nothing in a list": ({**GOOD, "input_ids": [1, None, 2]}, "'input_ids' contains NoneType"),
    "texts in a list": ({**GOOD, "input_ids": ["a"]}, "'input_ids' contains str"),
    "a huge number": ({**GOOD, "input_ids": [2**70]}, "too long for a token"),
}


@pytest.mark.parametrize("case", WRONG_ROWS)
def test_rows_that_are_no_bins_are_named(case: str, tmp_path: Path) -> None:
    row, said = WRONG_ROWS[case]
    array = np.empty(2, object)
    array[0], array[1] = GOOD, row
    shard = npy_of(tmp_path / "s.npy", pickle.dumps(array), 2)
    with pytest.raises(BadShardError) as caught:
        rows_of(open_shard(shard))
    assert said in caught.value.message
    assert caught.value.where in (str(shard), f"{shard}:1")


def test_other_arrays_are_no_shards(tmp_path: Path) -> None:
    np.save(tmp_path / "s.npy", np.zeros((3, 4), np.int32))
    with pytest.raises(BadShardError, match="an array of <i4"):
        open_shard(tmp_path / "s.npy").num_bins  # noqa: B018
    shard = npy_of(tmp_path / "t.npy", pickle.dumps(np.array([GOOD], object)), 2)
    with pytest.raises(BadShardError, match="the header says shape"):
        open_shard(shard).num_bins  # noqa: B018


def test_metadata_lie_behind_the_pickle_where_numpy_stops(tmp_path: Path) -> None:
    shard = foreign_npy(tmp_path / "s.npy", [GOOD])
    plain = shard.read_bytes()
    shard.write_bytes(plain + TRAILER + b'{"gristmill.pack_size": "8"}\n')
    assert np.load(shard, allow_pickle=True)[0] == GOOD
    with open_shard(shard) as opened:
        assert opened.metadata == ShardMetadata(pack_size=8) and opened.num_bins == 1
    shard.write_bytes(plain + b"something else")
    assert open_shard(shard).metadata == ShardMetadata()
    shard.write_bytes(plain + TRAILER + b'{"gristmill.pack_size": "many"}\n')
    with pytest.raises(BadShardError, match="metadata"):
        open_shard(shard).metadata  # noqa: B018
