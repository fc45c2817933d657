"""What a cluster leaves behind when all of its machines are lost, and what may become of it.

How it works. The first of two lives of a world ends without a warning (`two_lives.py`). What its
logs had committed by then is known here, with all that its clients had noted, and so is what the
object store had. So it can be said of each queue that is restored from the store whether that is
as it must be: of every sequence of a producer, and of every group's progress.

Invariants
1. A restored queue ends where a manifest ends that its log had decided, and not before any whose
   pointer was in the store.
2. A producer's row names no sequence as stored whose message is lost, and all whose messages are
   there; else the row has expired.
3. No group has committed more than it had, nor more than there is.

Not here: rows, groups and what the checker has to know of them (`carried.py`), what clients of the
second life see (`tests/checking`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from semel.broker.state import read_slice
from semel.broker.state.apply.slices import Slice
from semel.protos.ids import QueueKey
from semel.protos.queue_refs import queue_key_of
from semel.protos.v1 import control_pb2
from tests.world.carried import Carried, Lost
from tests.world.object_store import Held
from tests.world.tier_checks import Decided, TierChecks


@dataclass(frozen=True, slots=True, kw_only=True)
class LostCluster(Lost):
    """All that is known of it."""

    at_s: float
    objects: dict[str, list[Held]]
    """The versions of all objects in the store."""
    decided: Mapping[QueueKey, list[Decided]]
    """The manifests that its logs have decided."""
    published: Mapping[QueueKey, int]
    """End of the newest manifest of each queue whose pointer was in the store."""


def published_of(checks: TierChecks) -> dict[QueueKey, int]:
    """How far each queue's pointers in the store lead."""
    assert checks.store is not None
    found: dict[QueueKey, int] = {}
    for key, known in checks.decided.items():
        for each in known:
            if checks.store.now_object(each.pointer.name) is not None:
                found[key] = each.end
    return found


@dataclass(slots=True, kw_only=True)
class Comeback(Carried):
    """What comes of a lost cluster, step by step as the new one's log has it."""

    left: LostCluster
    checks: TierChecks
    _parts: dict[QueueKey, bytearray] = field(default_factory=dict)

    def on_step(self, step: control_pb2.MoveQueue) -> None:
        """Takes a step before it is folded."""
        key = queue_key_of(step.queue)
        if step.step == control_pb2.MOVE_STEP_PART:
            parts = self._parts.setdefault(key, bytearray())
            if step.offset == len(parts):
                parts += step.part
        elif step.step == control_pb2.MOVE_STEP_INGEST:
            found = read_slice(bytes(self._parts[key]))
            if key not in self.slices:
                self._forget_manifests(key, found.queue.tier.number)
            self.arrive(key, found)

    def _forget_manifests(self, key: QueueKey, number: int) -> None:
        """Newer manifests than the restored one are garbage now."""
        checks = self.checks
        kept = [each for each in checks.decided.get(key, []) if each.pointer.number <= number]
        if kept:
            kept[-1].replaced_s = None
        checks.decided[key] = kept
        names = {file.sha256 for each in kept for file in each.files}
        for place in [place for place in checks.files if place[0] == key]:
            if place[1] not in names:
                del checks.files[place]

    # --- the verdict

    def wrong(self) -> str:
        """The first contradiction between what came back and what was lost; empty without any."""
        for key, found in self.slices.items():
            problem = self._wrong_end(key, found) or self.wrong_rows(key, found)
            problem = problem or self.wrong_groups(key, found)
            if problem:
                return f"restored queue {key}: {problem}"
        return ""

    def _wrong_end(self, key: QueueKey, found: Slice) -> str:
        end, queue = found.queue.log_end_offset, found.queue
        ends = {each.end for each in self.left.decided.get(key, ())} | {queue.log_start_offset}
        if end not in ends:
            return f"it ends at {end}, where no manifest did: {sorted(ends)}"
        least = self.left.published.get(key, 0)
        return f"it ends at {end}, and {least} messages were tiered" if end < least else ""
