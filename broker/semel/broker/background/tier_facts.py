"""Notes the facts of tiered queues at the object store, from which a lost cluster is restored.

How it works. `note` makes the facts of a queue from the applied state, in one step, and stores them
if they differ from those that were noted last. The pointer of a manifest is published after facts
that name it; else facts are noted again no sooner than `tier_facts_ms` after the last ones, so that
a busy queue costs the store one object a minute.

A queue that was split is noted after its children, and nothing of a child is tiered before: a
restore that finds the split finds all children, and one that does not finds nothing in them.

Invariants
1. Facts are of an applied state: what they say cannot be lost.

Not here: what facts are (`semel.tier`, `facts.py`), what a restore makes of them
(`state/apply/restored.py`), when files are written (`tiering.py`).
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from typing import NamedTuple

from semel.broker.replica.replica import Replica
from semel.broker.state import RESTORE_JOB, QueueState, make_slice, settings_message
from semel.broker.tiers.place import TierPlace, check_owner
from semel.broker.tiers.pointers import pointer_of
from semel.protos.errors import NotMaster
from semel.protos.ids import QueueId, QueueKey
from semel.tier import QueueFacts, Store, put_facts, put_topic


class _Noted(NamedTuple):
    """The facts of a queue that this mastership noted last."""

    number: int
    sealed: bool
    digest: bytes
    due_s: float
    """When they are compared with the state again."""


class TierFacts:
    """The notes of one replica. All of it runs on the loop, but for the calls to the store."""

    def __init__(self, replica: Replica, place: TierPlace, now_s: Callable[[], float]) -> None:
        self._replica = replica
        self._place = place
        self._now_s = now_s
        self._noted: dict[QueueKey, _Noted] = {}

    def clear(self) -> None:
        """Another mastership has begun."""
        self._noted.clear()

    def forget_gone(self) -> None:
        """Forgets what was noted of queues that are not here any more."""
        for key in self._noted.keys() - self._replica.state.queues.keys():
            del self._noted[key]

    async def note(self, queue: QueueState) -> None:
        """Notes a queue's facts if they are due, and those of its family that come first. Raises
        NotMaster, and what the store raises."""
        if not self._replica.config.tier_facts_ms:
            return
        if queue.parent is not None:
            parent = self._at(queue, queue.parent)
            if parent is not None and not self._is_current(parent):
                await self.note(parent)
        await self._note_family(queue)

    def _at(self, queue: QueueState, queue_id: int) -> QueueState | None:
        key = QueueKey(queue.key.topic_id, QueueId(queue_id))
        return self._replica.state.queues.get(key)

    async def _note_family(self, queue: QueueState) -> None:
        """Notes the children that were not noted yet, then the queue itself."""
        for child in queue.children:
            found = self._at(queue, child.queue_id)
            if found is not None and found.key not in self._noted:
                await self._note_family(found)
        if not self._is_current(queue) or self._now_s() >= self._noted[queue.key].due_s:
            await self._put(queue.key)

    def _is_current(self, queue: QueueState) -> bool:
        """Whether facts are noted that have the queue's manifest, and its split if it was split."""
        noted = self._noted.get(queue.key)
        return noted is not None and noted[:2] == (queue.tier.number, queue.sealed)

    async def _put(self, key: QueueKey) -> None:
        replica, place = self._replica, self._place
        await replica.confirm_read()
        queue = replica.state.queues.get(key)
        if queue is None or queue.frozen:
            raise NotMaster(f"queue {key.queue_id} is not here any more, or is about to move")
        facts = self._facts_of(queue)
        digest = hashlib.sha256(facts.settings + facts.slice).digest()
        before = self._noted.get(key)
        if before is None or before.digest != digest:

            def work(store: Store) -> None:
                check_owner(store, place.cluster_id)
                if before is None:
                    put_topic(store, place.folder, facts.topic, facts.topic_id)
                put_facts(store, facts)

            await place.call(work)
        due_s = self._now_s() + replica.config.tier_facts_ms / 1000
        self._noted[key] = _Noted(facts.number, queue.sealed, digest, due_s)

    def _facts_of(self, queue: QueueState) -> QueueFacts:
        """The facts of one moment."""
        state, pointer = self._replica.state, pointer_of(self._place.folder, queue)
        window = state.id_windows.topics.get(queue.key.topic_id)
        settings = settings_message(queue.settings, None if window is None else window.settings)
        moved = state.moves.places.get(queue.key)
        return QueueFacts(
            cluster_id=self._place.folder,
            topic=queue.topic,
            topic_id=queue.key.topic_id,
            queue_id=queue.key.queue_id,
            number=queue.tier.number,
            length=queue.tier.length,
            sha256="" if pointer is None else pointer.sha256,
            time_us=self._replica.log_time_us(),
            log_start_offset=queue.log_start_offset,
            log_end_offset=queue.log_end_offset,
            # What this group released of any queue; of a queue that came here nothing is known.
            released=bool(state.delays.next_ordinal)
            or (moved is not None and moved.job != RESTORE_JOB),
            settings=settings.SerializeToString(deterministic=True),
            slice=make_slice(
                queue, state.producers, state.groups, state.delays, state.feature_level
            ),
            nonce=secrets.token_hex(8),
        )
