"""The election among the controllers, and the list of live ones, by ephemeral nodes in ZooKeeper.

How it works. Each controller makes one ephemeral, sequential node; the one with the lowest number
is master and the others watch. The node's name holds a nonce of the session, so a controller finds
its node again when the answer to its creation was lost, and does not mistake the node of a killed
process for its own.

The master holds a *lease*: at each third of it, the master has the majority confirm that its node
still exists, and the lease then runs from the moment of that request. A session ends no earlier
than its full time-out after the last sign of life, a lease after two thirds of that time-out. So a
master that was cut off or stopped sees its lease expire before another controller can be the
lowest. kazoo's own election recipe is not used: it blocks a thread, does not say which other
controller is master, and learns of a lost session only through a callback that may come late.

Invariants
1. `mine` is published only while a lease runs, and withdrawn when the lease ends, whatever the
   connection does.
2. Every change is delivered to every subscriber in order and none are combined: a mastership that
   was lost and regained is two changes.
3. When two processes have the same controller id, the later one gives up.

Not here: refusing the writes of an old master (`epoch.py`, by compare-and-set).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from dataclasses import dataclass
from typing import Final

from semel.controller.store.base import ControllerAddress, Mastership, StoreFailed
from semel.controller.store.zookeeper.layout import Paths
from semel.controller.store.zookeeper.session import (
    ConnectionLost,
    NodeMissing,
    Operation,
    Refused,
    Session,
)
from semel.protos import compat

log = logging.getLogger(__name__)

LEASE_SHARE: Final = 2 / 3
"""Length of a lease as a share of the session's time-out. The rest covers the delay with which a
follower reports to the leader: half a tick, and a session has at least two ticks."""
RENEWALS: Final = 3
"""Renewals within the length of one lease."""
STALE_SESSIONS: Final = 3
"""Number of time-outs after which a node with our id can no longer be that of a dead process."""

_NOBODY: Final = Mastership(master=None, mine=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A controller's node in the election."""

    name: str
    controller_id: int
    nonce: str
    number: int


def candidates_of(names: list[str]) -> list[Candidate]:
    """The candidates, master first; ignores names of another form."""
    found = []
    for name in names:
        parts = name.split("-")
        if len(parts) == 3 and parts[0].isdigit() and parts[2].isdigit():
            found.append(
                Candidate(
                    name=name, controller_id=int(parts[0]), nonce=parts[1], number=int(parts[2])
                )
            )
    return sorted(found, key=lambda candidate: candidate.number)


class Election:
    """One controller's part in the election. `run` does all the work until it is cancelled."""

    def __init__(self, session: Session, paths: Paths, me: ControllerAddress) -> None:
        self._session = session
        self._paths = paths
        self._me = me
        self._incarnation = 0
        """Session for which `_nonce` was made."""
        self._nonce = ""
        self._current: Mastership | None = None
        """None before the first look."""
        self._subscribers: set[asyncio.Queue[Mastership | None]] = set()
        self._changed = asyncio.Event()
        self._lease_end: asyncio.TimerHandle | None = None
        self._renounced = False
        self._same_id_since: dict[str, float] = {}
        """Nodes with our id that are not ours, and when each was first seen."""

    def subscribe(self) -> asyncio.Queue[Mastership | None]:
        """Returns a queue with the state, once known, and every change; None marks the end.

        The caller must `unsubscribe` it. It is unbounded: a change costs a session or a lease.
        """
        queue: asyncio.Queue[Mastership | None] = asyncio.Queue()
        if self._current is not None:
            queue.put_nowait(self._current)
        self._subscribers.add(queue)
        return queue

    def unsubscribe(self, queue: asyncio.Queue[Mastership | None]) -> None:
        """Stops putting changes into the queue."""
        self._subscribers.discard(queue)

    def close(self) -> None:
        """Tells every subscriber that there will be no more changes."""
        for queue in self._subscribers:
            queue.put_nowait(None)

    def renounce(self) -> None:
        """Gives up the mastership; this controller then stands again, behind the others."""
        self._end_lease()
        self._renounced = True
        self._changed.set()

    def on_state(self) -> None:
        """Handles a connection that came or went; with a new session the old node is gone."""
        if self._session.incarnation != self._incarnation:
            self._end_lease()
        self._changed.set()

    async def run(self) -> None:
        """Stands for election again and again. Raises StoreFailed when that cannot succeed."""
        try:
            while True:
                with contextlib.suppress(ConnectionLost):
                    await self._session.wait_connected()
                    await self._stand()
        finally:
            self._end_lease()

    async def _stand(self) -> None:
        """Takes part in the election for as long as this session lasts."""
        if self._incarnation != self._session.incarnation:
            self._incarnation = self._session.incarnation
            self._nonce = secrets.token_hex(8)
        lease_s = self._session.session_s * LEASE_SHARE
        while self._incarnation == self._session.incarnation:
            self._changed.clear()
            names = await self._session.children(self._paths.election, self._changed.set)
            if names is None:
                raise StoreFailed(f"the store {self._paths.chroot} in ZooKeeper was removed")
            candidates = candidates_of(names)
            own = next((found for found in candidates if found.nonce == self._nonce), None)
            if own is None:
                await self._enter()
                continue
            if self._renounced:
                await self._session.delete(f"{self._paths.election}/{own.name}")
                self._nonce = secrets.token_hex(8)
                self._renounced = False
                continue
            waits = self._look_for_twin(candidates, own)
            if candidates[0] is own:
                await self._renew(own, lease_s)
                pause_s: float | None = lease_s / RENEWALS
            else:
                await self._follow(candidates[0])
                pause_s = self._session.session_s if waits else None
            with contextlib.suppress(TimeoutError):
                async with compat.timeout(pause_s):
                    await self._changed.wait()

    async def _enter(self) -> None:
        prefix = f"{self._paths.election}/{self._me.controller_id}-{self._nonce}-"
        try:
            await self._session.create(
                prefix, self._me.address.encode(), ephemeral=True, sequence=True
            )
        except NodeMissing as error:
            raise StoreFailed(f"the store {self._paths.chroot} in ZooKeeper was removed") from error

    async def _renew(self, own: Candidate, lease_s: float) -> None:
        """Confirms with the majority that our node exists, and renews the lease."""
        loop = asyncio.get_running_loop()
        asked = loop.time()
        check = Operation(kind="check", path=f"{self._paths.election}/{own.name}", version=0)
        try:
            await self._session.commit([check])
        except Refused:  # the session has expired; kazoo will report it
            self._end_lease()
            return
        end = asked + lease_s
        if end <= loop.time() or self._renounced:
            return
        if self._lease_end is not None:
            self._lease_end.cancel()
        self._lease_end = loop.call_at(end, self._end_lease)
        self._publish(Mastership(master=self._me, mine=True))

    async def _follow(self, master: Candidate) -> None:
        node = await self._session.read(f"{self._paths.election}/{master.name}")
        if node is not None:
            address = ControllerAddress(
                controller_id=master.controller_id, address=node.data.decode()
            )
            self._publish(Mastership(master=address, mine=False))

    def _look_for_twin(self, candidates: list[Candidate], own: Candidate) -> bool:
        """True when an older node has our id; raises StoreFailed when its process is alive."""
        now = asyncio.get_running_loop().time()
        twins = [
            found
            for found in candidates
            if found.controller_id == own.controller_id
            and found.nonce != own.nonce
            and found.number < own.number
        ]
        self._same_id_since = {twin.name: self._same_id_since.get(twin.name, now) for twin in twins}
        for since in self._same_id_since.values():
            if now - since > STALE_SESSIONS * self._session.session_s:
                raise StoreFailed(
                    f"another controller {own.controller_id} of this group is running. Give each "
                    "a --controller-id of its own"
                )
        return bool(twins)

    def _end_lease(self) -> None:
        if self._lease_end is not None:
            self._lease_end.cancel()
            self._lease_end = None
        if self._current is not None and self._current.mine:
            log.info("mastership is over, there is no lease from ZooKeeper any more")
            self._publish(_NOBODY)

    def _publish(self, mastership: Mastership) -> None:
        if mastership != self._current:
            self._current = mastership
            for queue in self._subscribers:
                queue.put_nowait(mastership)
