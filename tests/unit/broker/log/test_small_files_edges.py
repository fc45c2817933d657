"""Hard states and checkpoints: what stands in their files, and what is made of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import google_crc32c
import pytest

from semel.broker.log.checkpoint import HEADER_BYTES, HEADER_STRUCT, Checkpoints
from semel.broker.log.hard_state import BLOCK_BYTES, RECORD_STRUCT, HardStateFile, _encode
from semel.protos.errors import CorruptSegment, DataDirectoryError
from semel.protos.ids import NodeId
from tests.kit.disk import SimFile, SimFiles

ROOT = Path("/node")
# --- hard states ----------------------------------------------------------------------------------


def saved(*states: tuple[int, int | None]) -> SimFiles:
    disk = SimFiles()
    disk.make_directory(ROOT)
    file = HardStateFile(ROOT / "hard_state", disk)
    for term, vote in states:
        file.save(term, None if vote is None else NodeId(vote))
    return disk


def records(disk: SimFiles) -> list[tuple[int, int, int]]:
    """Number, term and vote in each of the four blocks."""
    image = bytes(disk.image(ROOT / "hard_state"))
    found = []
    for block in range(4):
        fields = RECORD_STRUCT.unpack_from(image, block * BLOCK_BYTES)
        assert (fields[0], fields[1], fields[2], fields[6]) == (b"SMHS", 1, 0, 0)
        found.append(fields[3:6])
    return found


def test_slots_are_written_in_turn() -> None:
    assert records(saved((1, 2))) == [(0, 1, 2)] * 4
    one, two, three = (1, 3, 0), (0, 1, 2), (2, 3, 9)
    assert records(saved((1, 2), (3, None))) == [two, one, two, one]
    assert records(saved((1, 2), (3, None), (3, 9))) == [three, one, three, one]


@pytest.mark.parametrize(
    ("states", "block"),
    [(((1, 2), (3, None), (4, 1)), 2), (((1, 2), (4, 1)), 3), (((1, 2), (4, 1)), 1)],
)
def test_a_state_is_repaired_where_its_copies_differ(
    states: tuple[tuple[int, int | None], ...], block: int
) -> None:
    disk = saved(*states)
    before = bytes(disk.image(ROOT / "hard_state"))
    disk.image(ROOT / "hard_state")[block * BLOCK_BYTES + 9] ^= 1
    assert HardStateFile(ROOT / "hard_state", disk).load() == (4, 1)
    assert bytes(disk.restart(survives=0.0).image(ROOT / "hard_state")) == before
    file = HardStateFile(ROOT / "hard_state", disk)
    assert file.load() == (4, 1)
    operations = disk.operations
    assert file.load() == (4, 1)
    assert disk.operations == operations, "it is written again once"
    assert bytes(disk.image(ROOT / "hard_state")) == before


def test_a_file_that_ends_early_has_the_copies_before_its_end() -> None:
    disk = saved((1, 2), (3, None))
    image = disk.image(ROOT / "hard_state")
    del image[BLOCK_BYTES + RECORD_STRUCT.size :]
    assert HardStateFile(ROOT / "hard_state", disk).load() == (3, None)
    disk = saved((1, 2))
    del disk.image(ROOT / "hard_state")[RECORD_STRUCT.size - 1 :]
    with pytest.raises(CorruptSegment):
        HardStateFile(ROOT / "hard_state", disk).load()


def test_a_state_of_another_version_or_magic_is_told_apart() -> None:
    good = _encode((5, 6, NodeId(1)))
    for at, value, error in ((4, 2, DataDirectoryError), (0, 0, CorruptSegment)):
        raw = bytearray(good)
        raw[at] = value
        raw[-4:] = int(google_crc32c.value(bytes(raw[:-4]))).to_bytes(4, "little")
        disk = saved((1, 2))
        for block in range(4):
            image = disk.image(ROOT / "hard_state")
            image[block * BLOCK_BYTES : block * BLOCK_BYTES + len(raw)] = raw
        with pytest.raises(error):
            HardStateFile(ROOT / "hard_state", disk).load()


# --- checkpoints ----------------------------------------------------------------------------------


def checkpoints(disk: SimFiles, keep: int = 2) -> Checkpoints:
    if ROOT not in disk.names_now:
        disk.make_directory(ROOT)
    made = Checkpoints(disk, ROOT, keep)
    made.load()
    return made


def test_checkpoints_are_kept_as_many_as_asked() -> None:
    disk = SimFiles()
    made = checkpoints(disk)
    assert (made.newest, made.count, made.compact_limit) == (None, 0, 0)
    for index in (10, 20, 30):
        saved_one = made.save(index, index // 10, [b"state ", b"of %d" % index])
        assert (saved_one.index, saved_one.term, saved_one.length) == (index, index // 10, 11)
        assert made.newest == saved_one
    assert (made.count, made.compact_limit) == (2, 20)
    again = checkpoints(disk)
    assert again.newest is not None
    assert (again.newest.index, again.newest.term, again.count) == (30, 3, 2)
    assert (again.newest.payload, again.compact_limit) == (b"state of 30", 20)
    assert len(disk.find("checkpoint-")) == 2
    only = checkpoints(SimFiles(), keep=1)
    only.save(10, 1, [b"a"])
    assert (only.count, only.compact_limit) == (1, 10)
    only.save(20, 1, [b"b"])
    assert (only.count, only.compact_limit) == (1, 20)


def test_the_newest_checkpoint_is_that_of_the_highest_index() -> None:
    disk = SimFiles()
    made = checkpoints(disk)
    twenty, ten = (made.save(index, 1, [b"state"]) for index in (20, 10))
    assert (made.all(), made.newest) == ([ten, twenty], twenty)
    kept = [path.name[-2:] for path in disk.restart(survives=0.0).find("checkpoint-")]
    assert kept == ["10", "20"], "both names are durable"
    made.discard(twenty)
    assert (made.all(), made.damaged) == ([ten], [twenty.path])
    made.discard(twenty)
    assert (made.all(), made.damaged) == ([ten], [twenty.path])


def test_a_file_of_another_kind_is_no_checkpoint() -> None:
    disk = SimFiles()
    made = checkpoints(disk)
    one = made.save(10, 1, [b"state"])
    image = disk.image(one.path)
    image[0] ^= 1
    crc = google_crc32c.value(bytes(image[: HEADER_BYTES - 4]))
    image[HEADER_BYTES - 4 : HEADER_BYTES] = int(crc).to_bytes(4, "little")
    with pytest.raises(CorruptSegment, match="no checkpoint"):
        _ = one.payload


def test_one_checkpoint_of_two_lets_nothing_be_compacted() -> None:
    made = checkpoints(SimFiles())
    made.save(10, 1, [b"a"])
    assert made.compact_limit == 0
    made.save(10, 1, [b"again"])
    assert (made.count, made.compact_limit) == (1, 0)
    assert made.newest is not None
    assert made.newest.payload == b"again"


def test_a_damaged_checkpoint_is_noted_and_goes_with_the_next_save() -> None:
    disk = SimFiles()
    made = checkpoints(disk)
    for index in (10, 20):
        made.save(index, 1, [b"state"])
    disk.image(disk.find("checkpoint-")[1])[HEADER_BYTES] ^= 1
    again = checkpoints(disk)
    assert again.newest is not None
    assert (again.newest.index, len(again.damaged), again.count) == (10, 1, 1)
    again.save(30, 1, [b"state"])
    assert (again.damaged, again.count) == ([], 2)
    assert [path.name[-2:] for path in disk.find("checkpoint-")] == ["10", "30"]
    kept = [path.name[-2:] for path in disk.restart(survives=0.0).find("checkpoint-")]
    assert kept == ["10", "30"], "the removal is durable"


def test_a_damaged_checkpoint_that_is_written_anew_stays() -> None:
    disk = SimFiles()
    made = checkpoints(disk)
    made.save(10, 1, [b"state"])
    disk.image(disk.find("checkpoint-")[0])[HEADER_BYTES] ^= 1
    again = checkpoints(disk)
    again.save(10, 1, [b"state"])
    assert again.newest is not None
    assert again.newest.payload == b"state"


def test_what_a_crash_left_under_a_temporary_name_is_in_nobodys_way() -> None:
    disk = SimFiles()
    made = checkpoints(disk)
    left = ROOT / f"checkpoint-{10:020d}.tmp"
    disk.open(left, create=True).write([b"half"], 0)
    disk.open(ROOT / "segment-1", create=True).write([b"no checkpoint"], 0)
    again = checkpoints(disk)
    assert (again.count, again.damaged) == (0, [])
    made.save(10, 1, [b"state"])
    assert checkpoints(disk).count == 1
    assert left not in disk.names_now


def test_a_failed_save_leaves_nothing_behind() -> None:
    disk = SimFiles()
    made = checkpoints(disk)

    def parts() -> Sequence[bytes]:
        raise ConnectionError("the state is gone")

    class Fails:
        def __iter__(self) -> object:
            yield b"half"
            parts()

    closed: list[SimFile] = []
    close = SimFile.close

    def counted(self: SimFile) -> None:
        closed.append(self)
        close(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimFile, "close", counted)
        with pytest.raises(ConnectionError):
            made.save(10, 1, Fails())  # type: ignore[arg-type]
    assert len(closed) == 1
    assert disk.find("checkpoint-") == []
    assert made.count == 0


def test_a_checkpoint_that_is_gone_or_damaged_since_is_refused() -> None:
    disk = SimFiles()
    made = checkpoints(disk)
    one = made.save(10, 1, [b"state"])
    assert one.payload == b"state"
    fields = HEADER_STRUCT.unpack(bytes(disk.image(one.path))[:HEADER_BYTES])
    crc = google_crc32c.value(b"state")
    assert fields[:7] == (b"SMCP", 1, 0, 10, 1, 5, crc)
    assert set(fields[7:-1]) == {0}
    for at in (0, 3, 20, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 4):
        disk.image(one.path)[at] ^= 1
        with pytest.raises(CorruptSegment):
            _ = one.payload
        disk.image(one.path)[at] ^= 1
    for length in (0, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 4):
        whole = bytes(disk.image(one.path))
        del disk.image(one.path)[length:]
        with pytest.raises(CorruptSegment):
            _ = one.payload
        disk.image(one.path)[:] = whole
    disk.remove(one.path)
    with pytest.raises(CorruptSegment, match="newer checkpoints replaced it"):
        _ = one.payload


@pytest.mark.parametrize("states", [1, 2, 3])
def test_a_damaged_copy_of_the_newest_state_is_repaired_while_the_node_runs(states: int) -> None:
    """The copies of the older state may be as they are: nothing depends on them."""
    path = ROOT / "hard_state"
    disk = saved(*[(term, 9) for term in range(1, states + 1)])
    file = HardStateFile(path, disk)
    assert file.repair() is False, "nothing was loaded"
    assert file.load() == (states, 9)
    whole = bytes(disk.image(path))
    operations = disk.operations
    assert file.repair() is False
    assert disk.operations == operations
    newest = (0, 2) if (states - 1) % 2 == 0 else (1, 3)
    for block in range(4):
        disk.image(path)[block * BLOCK_BYTES + 9] ^= 1
        assert file.repair() is (block in newest)
        if block in newest:
            assert bytes(disk.restart(survives=0.0).image(path)) == whole
        else:
            disk.image(path)[:] = whole
