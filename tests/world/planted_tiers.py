"""Bugs of tiers to plant; the simulator must find each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from semel.broker.background import tier_garbage, tiering
from semel.broker.state import QueueState
from semel.broker.state.admission.queue_admission import QueueAdmission
from semel.broker.state.apply import deleted_tiers
from semel.broker.state.apply.tiered import TierState
from semel.tier import Store, changes, collect, put_rows, queue_writer
from semel.tier.files import encode


@contextmanager
def takes_any_number() -> Iterator[None]:
    """The log takes a manifest that follows an older one than the present."""
    misfit = TierState.misfit

    def lax(self: TierState, record: Any, *bounds: int) -> str | None:
        follows = type(record)()
        follows.CopyFrom(record)
        follows.number, follows.previous_sha256 = self.number + 1, self.sha256
        return misfit(self, follows, *bounds)

    with patch.object(TierState, "misfit", lax):
        yield


@contextmanager
def forgets_what_is_not_tiered() -> Iterator[None]:
    """The log gives up what is old, in the store or not."""

    def target(self: QueueState, now_us: int) -> int | None:
        if self.settings.local_retention_ms <= 0:
            return None
        found = self.offset_for_time(now_us - self.settings.local_retention_ms * 1000)
        return found if found > self.local_start else None

    admit = QueueAdmission.admit_forget

    def lax(self: Any, record: Any) -> Any:
        bounded = type(record)(queue=record.queue)
        return admit(self, bounded)

    with ExitStack() as stack:
        stack.enter_context(patch.object(QueueState, "forget_target", target))
        stack.enter_context(patch.object(QueueAdmission, "admit_forget", lax))
        stack.enter_context(
            patch.object(QueueState, "forget", lambda self, start: self._give_up(start))
        )
        yield


@contextmanager
def believes_that_puts_succeed() -> Iterator[None]:
    """What was written is not read back."""

    def put(self: Store, name: str, data: bytes | pa.Buffer) -> None:
        self._call(f"writing {name}", lambda: self._put(name, data))

    with patch.object(Store, "put", put):
        yield


@contextmanager
def collects_by_copies_alone() -> Iterator[None]:
    """What the newest copies of pointers do not lead to is garbage, whatever the log says."""

    def blind(store: Any, cluster_id: str, queue: Any, decided: Any, **options: Any) -> Any:
        return collect(store, cluster_id, queue, lambda: None, **options)

    with patch.object(tier_garbage, "collect", blind):
        yield


@contextmanager
def collects_young_objects() -> Iterator[None]:
    """Objects that nothing names are garbage at once."""

    def hasty(*arguments: Any, policy: Any, **options: Any) -> Any:
        young = type(policy)(reader_us=policy.reader_us, work_us=-policy.reader_us)
        return collect(*arguments, policy=young, **options)

    with patch.object(tier_garbage, "collect", hasty):
        yield


@contextmanager
def loses_the_last_row() -> Iterator[None]:
    """A file lacks the last message of the offsets that it is said to have."""

    def lossy(store: Any, cluster_id: str, queue: Any, rows: pa.Table, covers: Any) -> Any:
        kept = rows.slice(0, rows.num_rows - 1) if rows.num_rows > 1 else rows
        return put_rows(store, cluster_id, queue, kept, covers)

    with patch.object(tiering, "put_rows", lossy):
        yield


@contextmanager
def names_by_content_alone() -> Iterator[None]:
    """An object that is written again has the name that it had before, and may be deleted as the
    old one."""
    with (
        patch.object(changes, "_nonce", lambda: ""),
        patch.object(queue_writer, "encode", lambda *arguments, nonce: encode(*arguments)),
    ):
        yield


@contextmanager
def remembers_no_deletions() -> Iterator[None]:
    """The log does not know that a deleted queue may have files."""
    with patch.object(deleted_tiers, "may_have_files", lambda queue: False):
        yield
