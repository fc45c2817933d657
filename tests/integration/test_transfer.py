"""Metadata from one store into another: whole, resumable, above all that was given out."""

from __future__ import annotations

import asyncio
import json
import secrets
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from semel.controller import ControllerConfig, ControllerNode, records
from semel.controller.archive import archive as archives
from semel.controller.archive import transfer
from semel.controller.archive.archive import Archive
from semel.controller.archive.commands import controller
from semel.controller.archive.transfer import fill, take_out
from semel.controller.epoch import ControllerEpoch
from semel.controller.store import (
    ControllerAddress,
    MemoryStore,
    MetadataStore,
    SqliteStore,
    Transaction,
    VersionConflict,
)
from semel.controller.store.zookeeper import ZooKeeperStore
from semel.protos.errors import DataDirectoryError, InvalidRequest, MessageTooLarge, SemelError
from tests.kit.zookeeper import Server

ME = ControllerAddress(controller_id=1, address="127.0.0.1:7070")
Open = Callable[[], Awaitable[MetadataStore]]


@pytest.fixture(params=["sqlite", "zookeeper"])
async def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Open]:
    """Opens the same store again and again; the one before is closed first."""
    chroot = f"/{secrets.token_hex(8)}"
    opened: list[MetadataStore] = []

    async def open_again() -> MetadataStore:
        if opened:
            await opened[-1].close()
        if request.param == "sqlite":
            opened.append(await SqliteStore.open(tmp_path / "target"))
        else:
            server: Server = request.getfixturevalue("zookeeper_server")
            opened.append(await ZooKeeperStore.open((server.address,), chroot))
        return opened[-1]

    yield open_again
    for store in opened:
        await store.close()


async def old_cluster(topics: int = 3) -> Archive:
    """What a cluster has left; its store has given out revisions far above its size."""
    store = MemoryStore()
    await ControllerEpoch.begin(store, now_us=1, cluster_id="one")
    puts = {records.topic_key(f"topic {number}"): b"x" * (number % 9) for number in range(topics)}
    await store.transact(Transaction(puts=puts, revision_min=1 << 33))
    return await take_out(store)


async def test_everything_arrives_above_what_was_given_out(
    reopen: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "BATCH_KEYS", 40)
    archive = await old_cluster(2 * transfer.BATCH_KEYS + 7)
    counted: list[int] = []
    store = await reopen()
    revision = await fill(store, archive, progress=counted.append)
    assert revision == await store.revision() > archive.revision == 1 << 33
    assert sum(counted) == len(archive.entries)
    found = await store.scan("")
    assert {key: entry.value for key, entry in found.items()} == archive.entries
    assert min(entry.version for entry in found.values()) > archive.revision
    again = await take_out(await reopen())
    assert (again.cluster_id, again.entries) == ("one", archive.entries)
    assert again.revision == revision
    epoch = await ControllerEpoch.begin(await reopen(), now_us=2, cluster_id="one")
    assert epoch.number == 2


class Died(Exception):
    pass


class Dying(MemoryStore):
    """Only counts, and refuses to go on; what it is asked to do another store does."""

    def __init__(self, store: MetadataStore, left: int) -> None:
        super().__init__()
        self.scan, self._store, self.left = store.scan, store, left  # type: ignore[method-assign]

    async def transact(self, transaction: Transaction) -> int:
        if self.left == 0:
            raise Died
        self.left -= 1
        return await self._store.transact(transaction)


async def test_an_import_that_dies_anywhere_is_finished_by_the_same_file_alone(
    reopen: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "BATCH_KEYS", 3)
    archive, other = await old_cluster(7), await old_cluster(1)
    writes = 5  # the mark, three batches, the cluster
    for left in range(writes):
        store = await reopen()
        with pytest.raises(Died):
            await fill(Dying(store, left), archive)
        if left:
            with pytest.raises(DataDirectoryError, match="import of metadata was not finished"):
                await ControllerEpoch.begin(store, now_us=1)
            with pytest.raises(DataDirectoryError, match="not finished: import the same"):
                await take_out(store)
            with pytest.raises(DataDirectoryError, match="a part of another import"):
                await fill(store, other)
    store = await reopen()
    await fill(Dying(store, writes), archive)
    assert (await take_out(store)).entries == archive.entries
    with pytest.raises(DataDirectoryError, match="not empty"):
        await fill(store, archive)


async def test_of_two_imports_the_later_one_wins(reopen: Open) -> None:
    archive = await old_cluster()
    store = await reopen()
    transact, calls = store.transact, 0

    async def overtaken(transaction: Transaction) -> int:
        nonlocal calls
        calls += 1
        if calls == 2:
            store.transact = transact  # type: ignore[method-assign]
            await fill(store, archive)
        return await transact(transaction)

    store.transact = overtaken  # type: ignore[method-assign]
    with pytest.raises(VersionConflict, match="another import"):
        await fill(store, archive)
    assert (await take_out(store)).entries == archive.entries


async def test_a_store_in_use_is_not_filled(zookeeper_server: Server) -> None:
    place = ((zookeeper_server.address,), f"/{secrets.token_hex(8)}")
    used, store = await ZooKeeperStore.open(*place), await ZooKeeperStore.open(*place)
    await used.start(ME)
    async for mastership in used.mastership():
        if mastership.mine:
            break
    with pytest.raises(InvalidRequest, match=r"controller 1 at .* uses the store"):
        await fill(store, await old_cluster())
    assert await store.scan("") == {}
    await used.close()
    await fill(store, await old_cluster())
    await store.close()


async def test_a_value_that_zookeeper_cannot_hold_is_refused(zookeeper_server: Server) -> None:
    store = await ZooKeeperStore.open((zookeeper_server.address,), f"/{secrets.token_hex(8)}")
    archive = await old_cluster()
    large = Archive(
        cluster_id="one", revision=1, entries={**archive.entries, "/topics/large": bytes(1 << 20)}
    )
    with pytest.raises(MessageTooLarge):
        await fill(store, large)
    await store.close()


async def test_there_must_be_a_cluster_to_take_out(reopen: Open) -> None:
    store = await reopen()
    with pytest.raises(DataDirectoryError, match="nothing to export"):
        await take_out(store)
    with pytest.raises(SemelError, match="holds no cluster"):
        await fill(store, Archive(cluster_id="one", revision=1, entries={"/a": b""}))
    assert await store.scan("") == {}


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ([], "Missing argument"),
        (["file"], "name one store"),
        (["file", "--data", "d", "--metadata", "zookeeper://a:1/x"], "name one store"),
        (["file", "--metadata", "sqlite"], "write zookeeper://"),
        (["file", "--metadata", "zookeeper://a:1"], "CHROOT"),
    ],
)
@pytest.mark.parametrize("verb", ["export", "import"])
def test_wrong_usage_is_told(verb: str, arguments: list[str], match: str) -> None:
    result = CliRunner().invoke(controller, [verb, *arguments])
    assert result.exit_code == 2
    assert match in result.output


def test_a_directory_without_metadata_is_not_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        controller(["export", str(tmp_path / "file"), "--data", str(tmp_path)])
    assert exit_.value.code == 1
    assert "holds no metadata" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def moved(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    """What a command says that it did."""
    controller([*arguments, "--json"], standalone_mode=False)
    outcome: dict[str, object] = json.loads(capsys.readouterr().out)
    return outcome


def test_metadata_goes_from_one_controller_to_three_and_on_to_zookeeper(
    tmp_path: Path, zookeeper_server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    place = f"zookeeper://{zookeeper_server.address}/{secrets.token_hex(8)}"
    files = [tmp_path / f"{number}.metadata" for number in range(4)]
    archives.write(asyncio.run(old_cluster()), files[0])
    three = [f"--data={tmp_path / str(number)}" for number in (1, 2, 3)]
    moved(capsys, "import", str(files[0]), "--data", str(tmp_path / "alone"))
    moved(capsys, "export", str(files[1]), "--data", str(tmp_path / "alone"))
    moved(capsys, "import", str(files[1]), *three)
    moved(capsys, "export", str(files[2]), *three[:2])  # a majority has everything
    moved(capsys, "import", str(files[2]), "--metadata", place)
    outcome = moved(capsys, "export", str(files[3]), "--metadata", place)
    found = [archives.read(file) for file in files]
    assert all(one.entries == found[0].entries for one in found)
    assert outcome["cluster_id"] == "one"
    revisions = [one.revision for one in found]
    assert revisions == sorted(set(revisions))

    again, copied = str(tmp_path / "again"), f"--data={tmp_path / 'copied'}"
    shutil.copytree(tmp_path / "2", tmp_path / "copied")
    for arguments, match in [
        (("export", again, *three[:1]), "may lack the newest changes"),
        (("export", again, *three[:2], copied), "two directories are of controller 2"),
        (("export", again, three[0], f"--data={tmp_path}"), "is no directory of a controller"),
        (("import", str(files[1]), *three), "not empty"),
        (("import", str(files[1]), *reversed(three)), "belongs to controller"),
        (("import", str(files[1]), *three[:2]), "1, 3 or 5"),
    ]:
        with pytest.raises(SystemExit):
            controller([*arguments], standalone_mode=False)
        assert match in capsys.readouterr().err, arguments
    assert not (tmp_path / "again").exists()


def console(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "semel.console", "controller", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


async def test_a_cluster_moves_to_zookeeper_by_two_commands(
    tmp_path: Path, zookeeper_server: Server
) -> None:
    own, file = tmp_path / "own", str(tmp_path / "file")
    place = f"zookeeper://{zookeeper_server.address}/{secrets.token_hex(8)}"
    async with ControllerNode(ControllerConfig(data=own, listen="127.0.0.1:0")) as node:
        cluster_id = node.cluster_id
    exported = console("export", file, "--data", str(own), "--json")
    assert exported.returncode == 0, exported.stderr
    assert json.loads(exported.stdout)["cluster_id"] == cluster_id
    imported = console("import", file, "--metadata", place)
    assert imported.returncode == 0, imported.stderr
    assert imported.stdout == f"2 entries of cluster {cluster_id} imported\n"
    config = ControllerConfig(data=own, listen="127.0.0.1:0", metadata=place)
    async with ControllerNode(config) as node:
        assert node.cluster_id == cluster_id
        assert node.is_active
