"""The kernel's own syncs, on real files and real event loops; and machines that have none."""

from __future__ import annotations

import asyncio
import builtins
import gc
import logging
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from semel.broker.log import Log, LogConfig, OsFiles
from semel.broker.log.kernel_sync import KernelSyncs
from semel.protos.errors import InvalidRequest
from tests.kit.disk import SimFiles
from tests.kit.log_entries import WAIT_S, everything, frames, opened
from tests.kit.waiting import until_async

linux_aio = pytest.importorskip("caio.linux_aio")

CONFIG = LogConfig(segment_bytes=1 << 20, ids_per_segment=64, fill_bytes_per_second=0)


def run_with(kind: str, main: Callable[[], Any]) -> None:
    if kind == "uvloop":
        uvloop = pytest.importorskip("uvloop")
        uvloop.run(main())
    else:
        asyncio.run(main())


both_loops = pytest.mark.parametrize("kind", ["asyncio", "uvloop"])


@both_loops
def test_small_writes_are_synced_by_the_kernel_and_reported_on_the_loop(
    kind: str, tmp_path: Path
) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        log = await loop.run_in_executor(None, Log.open, tmp_path, CONFIG)
        reported: dict[int, int] = {}
        heard = asyncio.Event()

        def on_synced(index: int, term: int) -> None:
            reported[index] = threading.get_ident()
            loop.call_soon_threadsafe(heard.set)

        log.on_synced = on_synced
        log.attach(loop)
        writer = log._store.writer
        for number in range(1, 31):
            # The thread may report before it has counted that as performed: an append that comes in
            # between is the thread's, too.
            await until_async(lambda: writer._given == writer._performed)
            log.append(frames(number, number + 1))
            while log.synced_index < number:
                await heard.wait()
                heard.clear()
        threads = [reported[number] for number in range(1, 31)]
        assert threads[0] != threading.get_ident(), "the first one rolls"
        assert threads.count(threading.get_ident()) > 20
        assert log.stats().syncs == log.sync_seconds.count == 30
        for number in range(31, 40):
            log.append(frames(number, number + 1))
        await loop.run_in_executor(None, log.close)  # with a sync under way
        again = await loop.run_in_executor(None, Log.open, tmp_path, CONFIG)
        assert everything(again) == frames(1, 40)
        again.close()

    run_with(kind, main)


@both_loops
def test_a_snapshot_replaces_the_log_while_the_kernel_syncs(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        log = Log.open(tmp_path, CONFIG)
        log.attach(loop)
        log.append(frames(1, 2))
        while log.synced_index < 1:
            await asyncio.sleep(0.001)
        log.append(frames(2, 4))
        await loop.run_in_executor(None, log.install_snapshot, [b"state"], 100, 1, [])
        for number in range(101, 120):
            log.append(frames(number, number + 1))
            while log.synced_index < number:
                await asyncio.sleep(0.0005)
        assert log.stats().syncs == 19
        await loop.run_in_executor(None, log.close)

    run_with(kind, main)


def test_a_log_may_be_closed_on_the_loop_and_when_it_has_ended(tmp_path: Path) -> None:
    async def main() -> Log:
        log = Log.open(tmp_path, CONFIG)
        log.attach(asyncio.get_running_loop())
        log.append(frames(1, 2))
        while log.synced_index < 1:
            await asyncio.sleep(0.001)
        log.append(frames(2, 3))
        return log

    log = asyncio.run(main())
    log.close()

    async def again() -> None:
        log = Log.open(tmp_path, CONFIG)
        log.attach(asyncio.get_running_loop())
        log.append(frames(3, 4))
        log.close()

    asyncio.run(again())
    log = Log.open(tmp_path, CONFIG)
    assert everything(log) == frames(1, 4)
    log.close()


class _Operation:
    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    fdsync = classmethod(lambda cls, descriptor: cls(descriptor))

    def set_callback(self, callback: Callable[[int], None]) -> None:
        self.callback = callback


class _Aio:
    """`caio.linux_aio` of a kernel that does as the test says, and is done at once."""

    Operation = _Operation

    def __init__(self) -> None:
        self.refuses: BaseException | None = None
        self.submit_fails: BaseException | None = None
        self.events_fail: BaseException | None = None
        self.result = 0

    def Context(self, _: int) -> _Aio:  # noqa: N802
        if self.refuses is not None:
            raise self.refuses
        self.fileno = os.eventfd(0, os.EFD_NONBLOCK)
        return self

    def submit(self, operation: _Operation) -> int:
        if self.submit_fails is not None:
            raise self.submit_fails
        self._operation = operation
        os.eventfd_write(self.fileno, 1)
        return 1

    def poll(self) -> None:
        os.eventfd_read(self.fileno)

    def process_events(self, _: int) -> None:
        if self.events_fail is not None:
            raise self.events_fail
        self._operation.callback(self.result & (1 << 64) - 1)


@pytest.fixture
def aio(monkeypatch: pytest.MonkeyPatch) -> _Aio:
    import caio

    aio = _Aio()
    monkeypatch.setattr(caio, "linux_aio", aio)
    return aio


@pytest.mark.parametrize("number", [5, 28, 122])
async def test_an_error_of_the_kernel_is_told_with_its_number(aio: _Aio, number: int) -> None:
    loop = asyncio.get_running_loop()
    syncs = KernelSyncs.open(loop, 0)
    assert syncs is not None
    aio.result = -number
    told: asyncio.Future[OSError | None] = loop.create_future()
    syncs.start(0, told.set_result)
    error = await told
    assert isinstance(error, OSError)
    assert error.errno == number
    syncs.start(0, told.set_result)
    waited = syncs.wait()
    assert waited is not None
    assert waited.errno == number
    aio.events_fail = SystemError(number, "its fate is unknown")
    told = loop.create_future()
    syncs.start(0, told.set_result)
    error = await told
    assert isinstance(error, OSError)
    assert error.errno == number
    syncs.close()
    await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("raised", "number"),
    [
        (SystemError(5, "Input/output error"), 5),
        (OverflowError("Insufficient resources"), 11),
        (ValueError("invalid"), 22),
    ],
)
async def test_a_sync_that_the_kernel_does_not_take_is_an_error(
    aio: _Aio, raised: BaseException, number: int
) -> None:
    syncs = KernelSyncs.open(asyncio.get_running_loop(), 0)
    assert syncs is not None
    aio.submit_fails = raised
    with pytest.raises(OSError, match="io_submit") as found:
        syncs.start(0, lambda _: None)
    assert found.value.errno == number
    syncs.close()
    await asyncio.sleep(0)


def _without_caio(patch: pytest.MonkeyPatch, aio: _Aio) -> None:
    original = builtins.__import__

    def refuses(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("caio"):
            raise ImportError("Error on io_setup with code 11")
        return original(name, *rest, **more)

    patch.setattr(builtins, "__import__", refuses)


def _without_extension(patch: pytest.MonkeyPatch, aio: _Aio) -> None:
    """caio's wheel for machines that it has no extension for."""
    patch.setattr("caio.linux_aio", None)
    patch.setitem(sys.modules, "caio.linux_aio", None)


def _without_contexts(patch: pytest.MonkeyPatch, aio: _Aio) -> None:
    aio.refuses = SystemError(11, "Resource temporarily unavailable")


def _forbidden(patch: pytest.MonkeyPatch, aio: _Aio) -> None:
    aio.submit_fails = SystemError(1, "Operation not permitted")


def _unknown_operation(patch: pytest.MonkeyPatch, aio: _Aio) -> None:
    aio.submit_fails = ValueError("[EINVAL]")


def _answered_so(patch: pytest.MonkeyPatch, aio: _Aio) -> None:
    aio.result = -22


@pytest.mark.parametrize(
    "lack",
    [
        _without_caio,
        _without_extension,
        _without_contexts,
        _forbidden,
        _unknown_operation,
        _answered_so,
    ],
)
async def test_where_the_kernel_does_not_sync_the_thread_does_and_it_is_told_once(
    lack: Callable[[pytest.MonkeyPatch, _Aio], None],
    aio: _Aio,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    log = Log.open(tmp_path, CONFIG)
    with monkeypatch.context() as patch:
        lack(patch, aio)
        log.attach(asyncio.get_running_loop())
    for number in range(1, 4):
        log.append(frames(number, number + 1))
        assert log.wait_synced(number, WAIT_S)
    log.close()
    assert len([one for one in caplog.messages if "the log's thread does all" in one]) == 1


async def test_the_thread_can_be_chosen(tmp_path: Path) -> None:
    for config in (
        LogConfig(sync_by="thread", segment_bytes=1 << 20, fill_bytes_per_second=0),
        LogConfig(sync_interval_ms=1, segment_bytes=1 << 20, fill_bytes_per_second=0),
    ):
        disk = SimFiles()
        disk.syncs = lambda loop, file: 1 / 0  # type: ignore[assignment,method-assign,return-value]
        log = opened(disk, config)
        log.attach(asyncio.get_running_loop())
        log.append(frames(1, 3))
        assert log.wait_synced(2, WAIT_S)
        log.close()
    with pytest.raises(InvalidRequest, match="sync_by is kernel"):
        LogConfig(sync_by="kernel")


async def test_files_of_another_layer_are_refused(tmp_path: Path) -> None:
    """A wrapper around files that forgot its syncs would be gone around."""
    files = OsFiles()
    syncs = files.syncs(asyncio.get_running_loop(), files.open(tmp_path / "one", create=True))
    assert syncs is not None
    disk = SimFiles()
    disk.make_directory(Path("/node"))
    with pytest.raises(AssertionError, match="a layer that wraps files"):
        syncs.start(disk.open(Path("/node/one"), create=True), lambda _: None)
    syncs.close()
    await asyncio.sleep(0)


@pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors of Linux")
async def test_nothing_is_left_open(tmp_path: Path) -> None:
    """Files in the log's directory count, and what the kernel tells it by: anything else that is
    open here may be closed meanwhile, whenever garbage of another test is collected."""

    def open_files() -> list[str]:
        return sorted(
            target
            for link in Path("/proc/self/fd").iterdir()
            if (target := _target_of(link)).startswith(str(tmp_path)) or "eventfd" in target
        )

    gc.collect()
    before = open_files()
    for _ in range(3):
        log = Log.open(tmp_path, CONFIG)
        log.attach(asyncio.get_running_loop())
        assert len(open_files()) > len(before)
        log.close()
        await asyncio.sleep(0)
    assert open_files() == before


def _target_of(link: Path) -> str:
    try:
        return str(link.readlink())
    except FileNotFoundError:  # the one that this look itself had open
        return ""
