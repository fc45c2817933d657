"""What a node has only while it serves as master: the proposer, and the clock of the locks.

How it works. An elected node serves once the no-op of its own term is applied: its state then
holds every committed entry. A node that loses mastership drops both objects, one that stops drops
the proposer; every request that waits for an answer then gets an error.

Invariants
1. `proposer` exists only while the core is master of `term`; only it admits requests.
2. A node that stops becomes no master again, although entries that are on their way to the disk are
   still applied.

Not here: elections (`raft/electing.py`), making entries (`replica/proposer.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from semel.broker.config import BrokerConfig
from semel.broker.raft import RaftCore, Role
from semel.broker.replica.clock import monotonic_ms
from semel.broker.replica.message_ids import MessageIds
from semel.broker.replica.proposer import Proposer
from semel.broker.state import Admission, DelayedReleased, LockClock, State
from semel.protos import compat
from semel.protos.errors import NotMaster, SemelError
from semel.protos.ids import Term
from semel.protos.metrics import Histogram

logger = logging.getLogger(__name__)


class Mastership:
    """Proposer and lock clock of the present mastership, if there is one."""

    def __init__(
        self,
        config: BrokerConfig,
        core: RaftCore,
        not_master: Callable[[], NotMaster],
        ids: MessageIds,
    ) -> None:
        self._config = config
        self._ids = ids
        self._core = core
        self._not_master = not_master
        self.proposer: Proposer | None = None
        self.lock_clock: LockClock | None = None
        self.term = 0
        """Term of this node's newest mastership; 0 if it was never master."""
        self.lateness = Histogram()
        """Seconds from the time that a message was due to its release by this master."""
        self.decided = asyncio.Event()
        """Set when this node serves as master or is none; cleared by the task that waits for it."""
        self.room = asyncio.Event()
        """Set when fewer bytes wait to be proposed; cleared by the task that waits for it."""
        self.on_lost: Callable[[NotMaster], None] = lambda _: None
        self._stopping = False

    async def wait(self) -> None:
        """Waits until an elected node serves as master. Raises NotMaster."""
        while self.proposer is None:
            if self._core.role is not Role.MASTER:
                raise self._not_master()
            self.decided.clear()
            try:
                async with compat.timeout(1.0):
                    await self.decided.wait()
            except TimeoutError:
                raise self._not_master() from None

    @property
    def is_full(self) -> bool:
        """Too many bytes wait to be proposed."""
        return (
            self.proposer is not None
            and self.proposer.pending_bytes > self._config.pending_bytes_max
        )

    def maybe_begin(self, state: State, on_proposer: Callable[[Proposer], None]) -> bool:
        """Begins to serve if the no-op of this node's term is applied in `state`; True if it is.

        `on_proposer` may propose the first records, before those of any client.
        """
        if self._stopping or state.applied_term != self._core.term:
            return False
        config = self._config
        self.term = self._core.term
        self.proposer = Proposer(
            Admission(
                state,
                term=Term(self._core.term),
                park_bytes_max=config.park_bytes_max,
                staged_bytes_max=config.staged_bytes_max,
                stagers_max=config.stagers_max,
                transactions_max=config.transactions_max,
                producers_max=config.producers_per_queue_max,
            ),
            on_released=self._on_released,
            look_up=self._ids.submit,
            add_moved=self._ids.add_moved,
            answer_again=self._ids.answer_again,
        )
        on_proposer(self.proposer)
        for topic_id, arrival in self._ids.forgotten.items():
            self.proposer.submit_eviction(topic_id, arrival)
        self.lock_clock = LockClock()
        self.lock_clock.restore(state.groups.held(), state.queues, monotonic_ms())
        self.decided.set()
        logger.info("serving as master term=%d applied=%d", self.term, state.applied_index)
        return True

    def _on_released(self, released: DelayedReleased) -> None:
        for due_us, messages in released.dues:
            self.lateness.observe((released.released_us - due_us) / 1_000_000, messages)

    def lose(self) -> None:
        """Mastership is lost: every waiting request gets NotMaster."""
        proposer, self.proposer, self.lock_clock = self.proposer, None, None
        assert proposer is not None
        proposer.on_lost(self._not_master)
        self._ids.on_lost()
        self.room.set()
        self.on_lost(self._not_master())

    def stop(self, error: Callable[[], SemelError]) -> None:
        """The node stops: every waiting request gets `error`, and nothing more is proposed."""
        self._stopping = True
        if self.proposer is not None:
            self.proposer.on_lost(error)
            self.proposer = None
