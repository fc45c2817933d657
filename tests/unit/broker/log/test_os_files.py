"""The operating system's file layer under a kernel that does less than it was asked for."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from semel.broker.log import Log, LogConfig, OsFiles
from semel.broker.log import files as files_module
from semel.broker.log.files import replace_file
from semel.protos.errors import DiskFull
from tests.kit.log_entries import everything, fill, frame

PARTS = [bytes([65 + number]) * (7 + 13 * number) for number in range(12)]
WHOLE = b"".join(PARTS)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Random:
    """Every write and read does a part only, and at least a byte."""
    chance = Random(1)
    pwritev, pwrite, pread = os.pwritev, os.pwrite, os.pread

    def some(length: int) -> int:
        return length if length < 2 else chance.randrange(1, length)

    def short_pwritev(descriptor: int, parts: Sequence[bytes], offset: int) -> int:
        data = b"".join(parts)
        return pwrite(descriptor, data[: some(len(data))], offset)

    def short_pwrite(descriptor: int, data: bytes, offset: int) -> int:
        return pwrite(descriptor, bytes(data[: some(len(data))]), offset)

    def short_pread(descriptor: int, length: int, offset: int) -> bytes:
        return pread(descriptor, some(length), offset)

    assert pwritev is not None
    monkeypatch.setattr(os, "pwritev", short_pwritev)
    monkeypatch.setattr(os, "pwrite", short_pwrite)
    monkeypatch.setattr(os, "pread", short_pread)
    return chance


@pytest.mark.parametrize("offset", [0, 1, 4_096, 5_000])
def test_the_rest_of_a_short_write_stands_behind_its_beginning(
    offset: int, short: Random, tmp_path: Path
) -> None:
    for _ in range(20):
        path = tmp_path / f"file-{short.random()}"
        with closing(OsFiles().open(path, create=True)) as file:
            file.write([b"x" * (offset + len(WHOLE) + 9)], 0)
            file.write(PARTS, offset)
            assert file.read(len(WHOLE), offset) == WHOLE
            found = path.read_bytes()
        assert found == b"x" * offset + WHOLE + b"x" * 9


def test_more_parts_than_one_call_takes_stand_in_order(short: Random, tmp_path: Path) -> None:
    parts = [number.to_bytes(3, "big") for number in range(2 * files_module._IOV_MAX + 5)]
    with closing(OsFiles().open(tmp_path / "file", create=True)) as file:
        file.write(parts, 11)
        assert file.read(3 * len(parts), 11) == b"".join(parts)
        assert file.size() == 11 + 3 * len(parts)


def test_a_log_is_whole_under_short_writes_and_reads(short: Random, tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=16_384, ids_per_segment=8, fill_bytes_per_second=0)
    wanted = [frame(index, length=10 + 97 * (index % 11)) for index in range(1, 40)]
    with closing(Log.open(tmp_path / "log", config)) as log:
        for at in range(0, len(wanted), 3):
            fill(log, wanted[at : at + 3])
        log.save_checkpoint(5, 1, [b"state" * 900])
    with closing(Log.open(tmp_path / "log", config)) as log:
        assert everything(log) == wanted
        assert not log.damaged
        assert log.checkpoint is not None
        assert log.checkpoint.payload == b"state" * 900


def test_a_write_that_fails_after_a_part_of_it_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The disk was nearly full: the first part found room."""
    monkeypatch.setattr(os, "pwritev", lambda descriptor, parts, offset: 3)

    def no_room(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "pwrite", no_room)
    with closing(OsFiles().open(tmp_path / "file", create=True)) as file, pytest.raises(DiskFull):
        file.write(PARTS, 0)


def _open(path: Path) -> None:
    OsFiles().open(path, create=True).close()


def _write(path: Path) -> None:
    replace_file(OsFiles(), path, [b"x"])


def _resize(path: Path) -> None:
    path.write_bytes(b"xyz")
    with closing(OsFiles().open(path)) as file:
        file.resize(2)


def _remove(path: Path) -> None:
    path.write_bytes(b"")
    OsFiles().remove(path)


def _make(path: Path) -> None:
    OsFiles().make_directory(path)


def _sync_directory(path: Path) -> None:
    OsFiles().sync_directory(path.parent)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize(
    ("call", "act"),
    [
        ("open", _open),
        ("pwritev", _write),
        ("fdatasync", _write),
        ("rename", _write),
        ("fsync", _write),
        ("ftruncate", _resize),
        ("unlink", _remove),
        ("mkdir", _make),
        ("fsync", _sync_directory),
    ],
)
def test_a_full_disk_is_called_so_whatever_meets_it(
    call: str,
    act: Callable[[Path], None],
    error: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    real = getattr(os, call)

    def full(target: object, *arguments: object, **options: object) -> object:
        if call == "open" and not str(target).endswith("node"):
            return real(target, *arguments, **options)
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, call, full)
    with pytest.raises(DiskFull, match="no room on the disk"):
        act(tmp_path / "node")
