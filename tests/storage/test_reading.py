"""Contents of files, names of files, and Parquet files with one account of what went wrong."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from schemas.errors import InputError
from tasks.storage.atomic import AtomicFile, swap_symlink
from tasks.storage.names import link_target, remove_path, scratch_folder
from tasks.storage.parquet import (
    open_parquet,
    parquet_columns,
    parquet_faults,
    parquet_rows,
    read_table,
)
from tasks.storage.reading import (
    file_bytes,
    map_file,
    open_ranges,
    read_bytes,
    read_text,
    sha256_of_file,
)


def test_contents(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes("größe\r\n".encode() * 3)
    content = path.read_bytes()
    assert read_bytes(path) == content == map_file(path)[:]
    assert read_bytes(path, 5) == content[:5]
    assert read_text(str(path)) == "größe\n" * 3
    assert file_bytes(path) == len(content)
    assert sha256_of_file(path) == hashlib.sha256(content).hexdigest()
    with open_ranges(path) as file:
        assert file.bytes == len(content)
        assert file.read(3, 4) == content[3:7]
        assert file.read(len(content) - 2, 100) == content[-2:]
        assert file.read(1000, 10) == b""


def test_what_another_process_wrote_is_measured(tmp_path: Path) -> None:
    with AtomicFile(tmp_path / "a") as file:
        [temporary] = tmp_path.iterdir()
        temporary.write_bytes(b"by another")
        file.measure()
    record = file.record(tmp_path)
    assert (record.bytes, record.sha256) == (10, hashlib.sha256(b"by another").hexdigest())


def test_removing_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "folder" / "below").mkdir(parents=True)
    swap_symlink(tmp_path / "new" / "link", "../folder")
    assert link_target(tmp_path / "new" / "link") == "../folder"
    assert link_target(tmp_path / "folder") is link_target(tmp_path / "nothing") is None
    remove_path(tmp_path / "new" / "link")
    assert (tmp_path / "folder" / "below").is_dir() and not (tmp_path / "new" / "link").exists()
    for _ in range(2):
        remove_path(tmp_path / "folder")
    assert not (tmp_path / "folder").exists()
    with scratch_folder("test-") as scratch:
        (scratch / "a").touch()
    assert not scratch.exists()


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "t.parquet"
    rows = pa.table({"a": list(range(1000)), "b": ["x"] * 1000})
    pq.write_table(rows, path, row_group_size=100, write_page_checksum=True, use_dictionary=False)
    return path


def test_parquet(table: Path) -> None:
    assert parquet_rows(table) == 1000
    assert parquet_columns(table) == ["a", "b"]
    assert read_table(table, ["b"]).column_names == ["b"]
    with open_parquet(table, buffer_size=100) as file:
        assert file.read().num_rows == 1000


def test_a_flipped_byte_is_found_by_the_checksum_of_its_page(table: Path) -> None:
    data = bytearray(table.read_bytes())
    data[200] ^= 1
    table.write_bytes(data)
    with pytest.raises(InputError) as caught, parquet_faults("a/t.parquet"):
        read_table(table)
    assert (caught.value.code, caught.value.where) == ("bad_parquet", "a/t.parquet")


@pytest.mark.parametrize(
    ("content", "code"), [(None, "unreadable"), (b"", "bad_parquet"), (b"PAR1 nothing PAR1", "bad_parquet")]
)
def test_what_is_no_parquet_file(tmp_path: Path, content: bytes | None, code: str) -> None:
    path = tmp_path / "t.parquet"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError) as caught, parquet_faults(str(path)):
        parquet_rows(path)
    assert caught.value.code == code
