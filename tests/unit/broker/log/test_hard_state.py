"""The vote survives everything but the loss of all its copies; so does the directory's identity."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from semel.broker.log import HardStateFile, check_identity
from semel.broker.log.hard_state import BLOCK_BYTES, SLOT_BLOCKS
from semel.protos.errors import CorruptSegment, DataDirectoryError, DiskFull
from semel.protos.ids import NodeId
from tests.kit.disk import PowerCut, SimFile, SimFiles

PATH = Path("/node/hard_state")
STATES = [(1, None), (1, NodeId(2)), (4, NodeId(1)), (5, None), (9, NodeId(3))]


def _disk() -> SimFiles:
    disk = SimFiles()
    disk.make_directory(PATH.parent)
    disk.sync_directory(PATH.parent.parent)
    return disk


def _saved(count: int) -> SimFiles:
    disk = _disk()
    file = HardStateFile(PATH, disk)
    for state in STATES[:count]:
        file.save(*state)
    return disk


def test_it_returns_what_was_saved() -> None:
    disk = _disk()
    assert HardStateFile(PATH, disk).load() is None
    for state in STATES:
        HardStateFile(PATH, disk).save(*state)
        assert HardStateFile(PATH, disk.restart(survives=0.0)).load() == state


def test_it_works_on_real_files(tmp_path: Path) -> None:
    file = HardStateFile(tmp_path / "hard_state")
    assert file.load() is None
    for state in STATES:
        file.save(*state)
        assert HardStateFile(tmp_path / "hard_state").load() == state


@pytest.mark.parametrize("count", range(len(STATES)))
def test_a_crash_leaves_the_old_state_or_the_new_one(count: int) -> None:
    chance = random.Random(count)
    for crash_at in range(12):
        for survives in (0.0, 0.5, 1.0):
            disk = _saved(count)
            disk.operations, disk.crash_at = 0, crash_at
            file = HardStateFile(PATH, disk)
            done = True
            try:
                file.save(*STATES[count])
            except PowerCut:
                done = False
            found = HardStateFile(PATH, disk.restart(chance, survives)).load()
            old = STATES[count - 1] if count else None
            assert found == STATES[count] if done else found in (old, STATES[count])


@pytest.mark.parametrize("failing", [False, True])
@pytest.mark.parametrize("count", range(1, len(STATES)))
def test_nothing_is_written_where_the_state_before_stands(
    count: int, failing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that is cut off may destroy all blocks that it touches, also the one that follows a
    write which the disk had refused."""
    disk = _saved(count)
    file = HardStateFile(PATH, disk)
    assert file.load() == STATES[count - 1]
    before = bytes(disk.image(PATH))

    def refuse(*_: object) -> None:
        raise DiskFull("no room")

    if failing:
        with monkeypatch.context() as patched:
            patched.setattr(SimFile, "write", refuse)
            with pytest.raises(DiskFull):
                file.save(*STATES[count])
    file.save(*STATES[count])
    for at in range(0, len(before), BLOCK_BYTES):
        block = slice(at, at + BLOCK_BYTES)
        if disk.image(PATH)[block] != before[block]:
            disk.image(PATH)[block] = b"\xaa" * BLOCK_BYTES
    assert HardStateFile(PATH, disk).load() == STATES[count - 1]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_any_damaged_block_is_survived_and_repaired(count: int) -> None:
    built = _saved(count)
    for block in range(4):
        for at in range(40):
            disk = built.copy()
            disk.image(PATH)[block * BLOCK_BYTES + at] ^= 1 << at % 8
            assert HardStateFile(PATH, disk).load() == STATES[count - 1]
        disk = built.copy()
        disk.image(PATH)[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES] = bytes(BLOCK_BYTES)
        assert HardStateFile(PATH, disk).load() == STATES[count - 1]
        other = next(slot for slot in SLOT_BLOCKS if block in slot)
        for copy in other:
            if copy != block:
                disk.image(PATH)[copy * BLOCK_BYTES + 8] ^= 1
        assert HardStateFile(PATH, disk).load() == STATES[count - 1] or count == 1


def test_a_state_without_a_good_copy_is_not_guessed() -> None:
    disk = _saved(3)
    for block in range(4):
        disk.image(PATH)[block * BLOCK_BYTES + 16] ^= 1
    with pytest.raises(CorruptSegment, match="vote"):
        HardStateFile(PATH, disk).load()
    with pytest.raises(CorruptSegment):
        HardStateFile(PATH, disk).save(10, None)


def test_a_vote_never_changes_and_a_term_never_falls() -> None:
    file = HardStateFile(PATH, _disk())
    file.save(3, NodeId(1))
    file.save(3, NodeId(1))
    for term, vote in ((3, NodeId(2)), (3, None), (2, NodeId(1))):
        with pytest.raises(AssertionError):
            file.save(term, vote)
    assert file.load() == (3, 1)


def test_a_full_disk_does_not_stop_a_vote() -> None:
    disk = _saved(2)
    disk.room = 0
    HardStateFile(PATH, disk).save(*STATES[2])
    assert HardStateFile(PATH, disk).load() == STATES[2]


def test_an_identity_is_written_once_and_compared() -> None:
    disk = SimFiles()
    root = Path("/node")
    for _ in range(2):
        check_identity(root, cluster_id="c-1", group_id=1, node_id=2, files=disk)
    with pytest.raises(DataDirectoryError, match="cluster c-1 group 1 node 2, not to cluster c-1"):
        check_identity(root, cluster_id="c-1", group_id=1, node_id=3, files=disk)
    with pytest.raises(DataDirectoryError, match="not to cluster other"):
        check_identity(root, cluster_id="other", group_id=1, node_id=2, files=disk)
    image = disk.image(root / "IDENTITY")
    assert b"node=2\n" in image
    good = bytes(image)
    for at in range(len(good)):  # either copy may be damaged, and is written anew
        image = disk.image(root / "IDENTITY")
        image[at] ^= 1 << at % 8
        check_identity(root, cluster_id="c-1", group_id=1, node_id=2, files=disk)
        assert disk.image(root / "IDENTITY") == good


def test_an_identity_survives_in_either_file_and_not_without_both() -> None:
    disk = SimFiles()
    root = Path("/node")
    names = ("IDENTITY", "IDENTITY.copy")

    def check() -> None:
        check_identity(root, cluster_id="c-1", group_id=1, node_id=2, files=disk)

    check()
    good = bytes(disk.image(root / "IDENTITY"))
    for name in names:  # a write that was meant for another place
        disk.image(root / name)[:] = bytes(len(good))
        check()
        assert [bytes(disk.image(root / each)) for each in names] == [good, good]
        disk.remove(root / name)
        check()
        assert [bytes(disk.image(root / each)) for each in names] == [good, good]
    for name in names:
        disk.image(root / name)[:] = bytes(len(good))
    with pytest.raises(DataDirectoryError, match="damaged, and so is its copy"):
        check()


def test_two_identities_in_one_directory_are_refused() -> None:
    disk = SimFiles()
    for node in (2, 3):
        check_identity(Path(f"/{node}"), cluster_id="c-1", group_id=1, node_id=node, files=disk)
    disk.image(Path("/2/IDENTITY.copy"))[:] = bytes(disk.image(Path("/3/IDENTITY")))
    with pytest.raises(DataDirectoryError, match="belongs to cluster c-1 group 1 node 3"):
        check_identity(Path("/2"), cluster_id="c-1", group_id=1, node_id=2, files=disk)


def test_a_strange_directory_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"")
    with pytest.raises(DataDirectoryError, match=r"holiday\.jpg"):
        check_identity(tmp_path, cluster_id="c-1", group_id=1, node_id=2)
    fresh = tmp_path / "new" / "node"
    check_identity(fresh, cluster_id="c-1", group_id=1, node_id=2)
    check_identity(fresh, cluster_id="c-1", group_id=1, node_id=2)


def test_an_identity_of_a_newer_format_is_refused() -> None:
    from semel.broker.log import directory_identity

    disk = SimFiles()
    root = Path("/node")
    disk.make_directory(root)
    data = directory_identity._encode({"format": "3", "cluster": "c", "group": "1", "node": "2"})
    file = disk.open(root / "IDENTITY", create=True)
    file.write([data], 0)
    with pytest.raises(DataDirectoryError, match="format 3"):
        check_identity(root, cluster_id="c", group_id=1, node_id=2, files=disk)
