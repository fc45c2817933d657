"""What a log may be after a power failure or a kill, and a driver that makes many of them.

The model keeps every *lineage*: the entries as they stood between two truncations. After a crash
the log must be a prefix of one of the lineages since the last truncation that became durable, and
hold all that was reported durable in the newest one. So neither a lost entry, nor a torn one, nor
one that was truncated and came back between others passes. Whatever a process finds at its start
and calls durable must be there after the next failure of power, also what the process before had
left in the page cache, synced or not, or with a sync that failed.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from typing import Any

from semel.broker.log import Log, RecordRef
from semel.protos.errors import Closed, StorageError
from semel.protos.frames import FRAME_HEADER_BYTES, decode_frame_header
from tests.kit.disk import PowerCut, SimFiles, SimSyncs
from tests.kit.log_entries import WAIT_S, frame, opened


class Violation(AssertionError):
    """The log broke its promise."""


class Model:
    """What was appended and what was reported."""

    def __init__(self) -> None:
        self.lineages: list[list[bytes]] = [[]]
        self.acked = 0
        """Reported durable and not truncated since."""
        self.kept: dict[tuple[int, int], bytes] = {}
        self.checkpoint = 0
        self.checkpoints: dict[int, bytes] = {}
        self.lock = threading.Lock()

    @property
    def now(self) -> list[bytes]:
        return self.lineages[-1]

    def truncate(self, from_index: int) -> None:
        with self.lock:
            self.lineages.append(self.now[: from_index - 1])
            self.acked = min(self.acked, from_index - 1)

    def on_synced(self, index: int, term: int) -> None:
        with self.lock:
            self.acked = max(self.acked, index)

    @staticmethod
    def term_of(entry: bytes) -> int:
        return decode_frame_header(entry).term if entry else 0

    def check(self, log: Log) -> None:
        """Raises Violation; afterwards the model is what the log holds."""
        if log.last_index < self.acked:
            raise Violation(f"entry {self.acked} was reported durable, the log ends before it")
        if log.first_index > self.checkpoint + 1:
            raise Violation(f"the log begins at {log.first_index}, after checkpoint")
        checkpoint = log.checkpoint
        if self.checkpoint and (checkpoint is None or checkpoint.index < self.checkpoint):
            raise Violation(f"checkpoint {self.checkpoint} is gone")
        if checkpoint is not None and checkpoint.payload != self.checkpoints[checkpoint.index]:
            raise Violation(f"checkpoint {checkpoint.index} has other bytes")
        for one in log.damaged.values():
            if one.certain or one.index <= self.acked:
                raise Violation(f"a crash alone made {one} certain")
        if log.damaged:
            log.cut_torn()
        found = [b"", *log.read_frames(log.first_index, log.last_index + 1)]
        if log.last_index < log.first_index:
            found = [b""]
        for lineage in reversed(self.lineages):
            if lineage[log.first_index - 1 : log.last_index] == found[1:]:
                break
        else:
            raise Violation("the entries found are of no lineage")
        acked = self.now[log.first_index - 1 : self.acked]
        if acked != found[1 : len(acked) + 1]:
            raise Violation("an entry that was reported durable has other bytes")
        for (index, position), payload in self.kept.items():
            if log.read_record(index, position, len(payload)) != payload:
                raise Violation(f"kept record of entry {index} has other bytes")
        self.lineages = [lineage[: log.last_index]]
        self.acked = log.synced_index
        if checkpoint is not None:
            self.checkpoint = checkpoint.index


class Driver:
    """Lives of one node on one disk; everything follows from the seed, but the threads' pace.

    With `kernel` small writes are synced by a simulated kernel, which is done at any time, and is
    heard of at any later one.
    """

    def __init__(self, seed: int, *, kernel: bool = False) -> None:
        self.chance = random.Random(seed)
        self.kernel = kernel
        self.disk = SimFiles()
        self.model = Model()
        self.term = 1
        self.saw: set[str] = set()

    def run(self, lives: int) -> None:
        for _ in range(lives):
            self._live()
            if self.chance.random() < 0.4:
                self.disk = self.disk.copy()
                self.saw.add("killed")
                continue
            survives = self.chance.choice([0.0, 0.3, 0.5, 0.9, 1.0])
            self.disk = self.disk.restart(self.chance, survives)
        self.disk.sync_error_in = None
        log = self._recovered()
        log.close()

    def _recovered(self) -> Log:
        try:
            log = opened(self.disk)
        except StorageError as error:
            raise Violation("a crash alone made the log unreadable") from error
        try:
            if log.damaged:
                self.saw.add("torn")
                if self.chance.random() < 0.8:
                    self._repair_late(log)
            self.model.check(log)
        except Closed as error:
            log.close()
            raise PowerCut("in a thread, before the log was checked") from error
        except StorageError as error:
            raise Violation("a crash alone made an entry unreadable") from error
        return log

    def _repair_late(self, log: Log) -> None:
        """A peer gives a torn entry; and just before it is put in place, the thread that does that
        is switched away from, and a new master replaces the entry."""
        model, store = self.model, log._store
        damage = log.damaged[min(log.damaged)]
        index = damage.index
        wanted = model.now[index - 1] if index <= len(model.now) else b""
        if (len(wanted), model.term_of(wanted)) != (damage.length, damage.term):
            return
        write = store.reader.repair

        def switched_away_from(*arguments: Any) -> None:
            store.reader.repair = write  # type: ignore[method-assign]
            self.saw.add("replaced while it was repaired")
            log.truncate(index)
            model.truncate(index)
            self.term = max(self.term, log.last_term) + 1
            added = [_entry(index, self.term), _entry(index + 1, self.term)]
            model.now.extend(added)
            log.append(added)
            assert log.wait_synced(index + 1, WAIT_S)
            model.on_synced(index + 1, self.term)
            write(*arguments)

        store.reader.repair = switched_away_from  # type: ignore[assignment,method-assign]
        log.repair(wanted)

    def _live(self) -> None:
        chance, disk, model = self.chance, self.disk, self.model
        how = chance.random()
        if how < 0.4:
            disk.syncs_left = chance.randrange(1, 20)
        elif how < 0.8:
            disk.crash_at = chance.randrange(1, 120)
        if chance.random() < 0.3:
            disk.sync_error_in = chance.randrange(0, 12)
        log = None
        try:
            log = self._recovered()
            log.on_synced = model.on_synced
            if self.kernel:
                disk.kernel = SimSyncs(disk)
                log.attach(None)  # type: ignore[arg-type]
            for _ in range(chance.randrange(1, 25)):
                self._step(log)
                self._kernel_step()
            if chance.random() < 0.2:
                log.close()
                self.saw.add("closed")
        except PowerCut:
            self.saw.add("cut at an operation")
        except Violation:
            raise
        except OSError:
            self.saw.add("failed at the start" if log is None else "failed sync")
        except Exception:
            if log is None or log._failure is None:
                raise
            assert isinstance(log._failure, PowerCut | OSError), log._failure
            cut = isinstance(log._failure, PowerCut)
            self.saw.add("cut in a thread" if cut else "failed sync")
        finally:
            disk.power_cut()
            if log is not None:
                log.on_synced = lambda index, term: None
                with contextlib.suppress(PowerCut):
                    log.close()

    def _kernel_step(self) -> None:
        kernel = self.disk.kernel
        if kernel is None or not kernel.under_way:
            return
        self.saw.add("kernel")
        what = self.chance.random()
        if what < 0.5:
            kernel.tell()
        elif what < 0.7:
            kernel.complete()

    def _wait(self, log: Log, index: int) -> None:
        """Until the entry is reported durable. Raises Closed."""
        deadline = time.monotonic() + WAIT_S
        kernel = self.disk.kernel
        while not log.wait_synced(index, WAIT_S if kernel is None else 0.001):
            if kernel is not None:
                kernel.tell()
            if time.monotonic() > deadline:
                raise Violation(f"entry {index} is never reported durable")

    def _step(self, log: Log) -> None:
        chance, model = self.chance, self.model
        what = chance.random()
        if what < 0.6 or log.last_index < log.first_index:
            # As in figure 7 of the Raft paper: a new master may send entries of older terms than
            # those it made the node truncate.
            self.term += chance.random() < 0.2
            term = chance.randrange(max(1, log.last_term), self.term + 1)
            added = [
                _entry(log.last_index + 1 + more, term) for more in range(chance.randrange(1, 7))
            ]
            model.now.extend(added)
            log.append(added)
        elif what < 0.75:
            self._wait(log, log.last_index)
        elif what < 0.87:
            lowest = max(log.first_index, model.checkpoint + 1)
            if lowest <= log.last_index:
                at = chance.randrange(lowest, log.last_index + 1)
                log.truncate(at)
                model.truncate(at)
                self.term += 1
                self.saw.add("truncation")
        elif what < 0.95:
            self._save_checkpoint(log)
        else:
            self._compact(log)

    def _save_checkpoint(self, log: Log) -> None:
        lowest = max(self.model.checkpoint, log.first_index - 1)
        index = self.chance.randrange(lowest, log.last_index + 1)
        if index <= self.model.checkpoint or index < 1:
            return
        self._wait(log, index)
        term = log.term_at(index)
        assert term is not None
        payload = f"state {index} ".encode() * 100
        self.model.checkpoints[index] = payload
        log.save_checkpoint(index, term, [payload[:50], payload[50:]])
        self.model.checkpoint = index
        self.saw.add("checkpoint")

    def _compact(self, log: Log) -> None:
        model = self.model

        def keep(lo: int, hi: int) -> list[RecordRef]:
            refs = []
            for index in range(lo, hi):
                if index % 3 == 0:
                    entry = model.now[index - 1]
                    length = int.from_bytes(entry[48:52], "little")
                    model.kept[index, FRAME_HEADER_BYTES] = entry[56 : 56 + length]
                    refs.append(RecordRef(index, FRAME_HEADER_BYTES, length))
            return refs

        before = log.first_index
        log.compact(log.last_index + 1, keep)
        if log.first_index > before:
            self.saw.add("compaction")


def _entry(index: int, term: int) -> bytes:
    """Always the same bytes for the same (index, term), as Raft has it."""
    return frame(index, term, (60, 60, 60, 200, 900)[hash((index // 5, term)) % 5])


def run_seed(seed: int, lives: int = 4, *, kernel: bool = False) -> set[str]:
    driver = Driver(seed, kernel=kernel)
    driver.run(lives)
    return driver.saw
