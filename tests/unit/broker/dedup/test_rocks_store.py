"""RocksDB under the index: what a full disk, damage and other threads do to it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from rocksdict import Options

from semel.broker.dedup.id_store import CorruptIndex, Writes
from semel.broker.dedup.rocks_store import RocksIdStore

APART = (b"3-for itself ", b"4-for itself ")
"""Prefixes that are kept apart."""
VALUES = {
    prefix + b"%03d" % number: bytes([number]) * 900
    for prefix in (b"1-", b"2-", APART[0])
    for number in range(60)
}


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A store with three files of values."""
    store = RocksIdStore(tmp_path / "ids")
    for part in (b"1", b"2", b"3"):
        if part == b"3":
            store.keep_apart(APART[0])
        store.write(Writes(puts=[each for each in VALUES.items() if each[0].startswith(part)]))
        store.sync()
    store.close()
    return tmp_path / "ids"


def _read(directory: Path) -> list[bytes | None] | None:
    """What a store answers; None for damage."""
    store = RocksIdStore(directory)
    try:
        found = store.get(list(VALUES))
    except CorruptIndex:
        return None
    finally:
        store.close()
    return found


def _damaged(written: Path, file: Path, data: bytes | None) -> Path:
    copy = written.with_name("damaged")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(written, copy)
    (copy / file.name).unlink() if data is None else (copy / file.name).write_bytes(data)
    return copy


def test_damage_is_noticed_or_makes_no_difference(written: Path) -> None:
    """A byte of any file is another one, the end of a file is missing, or all of it.

    RocksDB takes a list of its files that ends early for one that a crash cut off. It has lost
    writes then, never made up any; the index notices by its own list of runs.
    """
    random = Random(5)
    noticed = lost = 0
    for file in sorted(written.iterdir()):
        data = file.read_bytes()
        tries: list[bytes | None] = [None]
        for at in random.sample(range(len(data)), min(12, len(data))):
            tries.append(data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :])
            tries.append(data[:at])
        for each in tries:
            found = _read(_damaged(written, file, each))
            if found is None:
                noticed += 1
            elif found != list(VALUES.values()):
                lost += 1
                assert file.name.startswith("MANIFEST")
                assert all(
                    one in (None, other) for one, other in zip(found, VALUES.values(), strict=True)
                )
    assert noticed > 50
    assert lost < 12


def test_a_wiped_store_begins_anew(written: Path) -> None:
    for file in written.glob("*.sst"):
        file.write_bytes(b"x" * 100)
    store = RocksIdStore(written)
    with pytest.raises(CorruptIndex, match="the index of message ids is damaged"):
        store.get(list(VALUES))
    store.wipe()
    assert store.get(list(VALUES)) == [None] * len(VALUES)
    store.write(Writes(puts=[(b"a", b"1")]))
    store.sync()
    store.close()
    assert RocksIdStore(written).get([b"a"]) == [b"1"]


_FULL = """
import resource, signal, sys
from pathlib import Path
from semel.broker.dedup.id_store import Writes
from semel.broker.dedup.rocks_store import RocksIdStore

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = RocksIdStore(Path(sys.argv[1]))
many = [(b"%04d" % number, bytes(4096)) for number in range(200)]
apart = bytes(13)
store.keep_apart(apart)
many += [(apart + b"%04d" % number, bytes(4096)) for number in range(300)]
store.write(Writes(puts=many[:100]))
store.sync()
limit(1 << 20)
for attempt in range(3):
    try:
        store.write(Writes(puts=many))
        store.sync()
    except OSError as error:
        print("refused", "File too large" in str(error))
    print("read", len([value for value in store.get([key for key, _ in many]) if value]))
limit(resource.RLIM_INFINITY)
store.write(Writes(puts=many))
store.sync()
print("read", len([value for value in store.get([key for key, _ in many]) if value]))
"""


def test_a_store_goes_on_once_the_disk_has_room_again(tmp_path: Path) -> None:
    """Files that must not grow stand for a full disk, in a process of their own."""
    found = subprocess.run(
        [sys.executable, "-c", _FULL, str(tmp_path / "ids")],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    lines = found.stdout.split("\n")
    assert lines[0] == "refused True"
    assert lines.count("refused True") == 3
    assert int(lines[1].split()[1]) >= 100
    assert lines[-2] == "read 500"


def test_others_read_while_it_is_closed_and_opened(written: Path) -> None:
    store = RocksIdStore(written)
    stop = threading.Event()
    failures: list[BaseException] = []
    reads = 0

    def read() -> None:
        nonlocal reads
        try:
            while not stop.is_set():
                assert store.get(list(VALUES)) == list(VALUES.values())
                reads += 1
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    for _ in range(20):
        store._failed = True  # the next write closes and opens it
        store.write(Writes(puts=[(b"a", b"1")]))
    while reads < 5 and not failures:
        pass
    stop.set()
    thread.join()
    store.close()
    assert not failures


def test_a_range_that_is_dropped_gives_its_space_back(tmp_path: Path) -> None:
    store = RocksIdStore(tmp_path / "ids")
    random = Random(1)

    def size() -> int:
        return sum(path.stat().st_size for path in (tmp_path / "ids").glob("*.sst"))

    for part in (1, 2):
        pairs = [(b"%d-%03d" % (part, number), random.randbytes(10_000)) for number in range(200)]
        store.write(Writes(puts=pairs))
        store.sync()
    assert size() > 4_000_000
    store.drop(b"1", b"2")
    assert size() < 2_200_000
    assert store.get([b"1-007"]) == [None]
    assert store.get([pairs[7][0]]) == [pairs[7][1]]
    store.close()
    assert RocksIdStore(tmp_path / "ids").get([b"1-007", pairs[7][0]]) == [None, pairs[7][1]]


def _size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.glob("*.sst"))


def _fill(store: RocksIdStore, prefix: bytes) -> dict[bytes, bytes]:
    random = Random(prefix)
    pairs = {prefix + b"%03d" % number: random.randbytes(10_000) for number in range(200)}
    store.write(Writes(puts=list(pairs.items())))
    store.sync()
    return pairs


def test_what_is_kept_apart_is_dropped_without_being_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RocksIdStore(tmp_path / "ids")
    for prefix in APART:
        store.keep_apart(prefix)
    gone, kept, plain = (_fill(store, prefix) for prefix in (*APART, b"5-"))
    assert _size(tmp_path / "ids") > 6_000_000
    changes: list[object] = []
    change = store._change

    def counted(work: Callable[[Any], None]) -> None:
        changes.append(work)
        change(work)

    monkeypatch.setattr(store, "_change", counted)
    store.drop(APART[0], APART[0] + b"\xff")
    assert len(changes) == 1, "no range is compacted"
    assert _size(tmp_path / "ids") < 4_400_000
    assert store.get(list(gone)) == [None] * len(gone)
    everything = {**kept, **plain}
    assert store.get(list(everything)) == list(everything.values())
    store.close()
    opened = RocksIdStore(tmp_path / "ids")
    assert opened.get([*gone, *everything]) == [None] * len(gone) + list(everything.values())
    opened.keep_apart(APART[0])  # a run that a crash has cut off may be begun again
    assert opened.get(list(gone)) == [None] * len(gone)
    again = _fill(opened, APART[0])
    opened.close()
    assert RocksIdStore(tmp_path / "ids").get(list(again)) == list(again.values())


def test_what_an_earlier_version_did_not_keep_apart_is_read_and_dropped(tmp_path: Path) -> None:
    store = RocksIdStore(tmp_path / "ids")
    old = _fill(store, APART[0])
    store.keep_apart(APART[1])
    new = _fill(store, APART[1])
    store.close()
    opened = RocksIdStore(tmp_path / "ids")
    assert opened.get([*old, *new]) == [*old.values(), *new.values()]
    opened.drop(APART[0], APART[1])
    assert opened.get([*old, *new]) == [*[None] * len(old), *new.values()]
    assert _size(tmp_path / "ids") < 2_200_000
    opened.close()


def test_a_column_family_of_another_format_is_damage(tmp_path: Path) -> None:
    store = RocksIdStore(tmp_path / "ids")
    store.write(Writes(puts=[(b"a", b"1")]))
    store._db.create_column_family("other", Options(raw_mode=True))
    store.close()
    with pytest.raises(CorruptIndex, match="column family of another format"):
        RocksIdStore(tmp_path / "ids").get([b"a"])
