"""The object store of a node: opened at its start, and called on threads of its own.

How it works. At the start the place is opened and claimed for the cluster. What only the operator
can mend (a wrong URL, no rights, another cluster's place) ends the start. A store that does not
answer does not: the node serves what its log has, and tries again in the background.

Calls to the store may hang as long as its limits allow, so none of them runs on the event loop or
in the pool that reads the log. Each has a thread for itself, which does not keep the process from
ending.

Invariants
1. Nothing is read or written at the place before it is claimed.

Not here: what is written (`background/tiering.py`) and read (`cold_reads.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from semel.protos import compat
from semel.protos.errors import SemelError
from semel.tier import (
    DaemonThreads,
    ForeignTier,
    Store,
    StoreLimits,
    TierUnavailable,
    claim,
    identity_of,
    open_store,
    owner_of,
    take_over,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

LIMITS: Final = StoreLimits(connect_s=3.0, request_s=10.0, attempts=3, call_s=60.0)
"""Requests are repeated by what makes them, so a single one need not be waited for so long."""
_THREADS: Final = DaemonThreads("tier")
OPEN_S: Final = 15.0
"""So long a start waits for the store."""
RETRY_MIN_S: Final = 1.0
RETRY_MAX_S: Final = 300.0


@dataclass(slots=True)
class TierCounters:
    """Totals since the start, as plain numbers for `probe.py`."""

    errors: int = 0
    """Calls that the store did not answer, or refused."""
    written_bytes: int = 0
    """Bytes of data files."""
    written_messages: int = 0
    cold_reads: int = 0
    """Row groups that were read for clients."""
    cold_bytes: int = 0
    """Bytes of the batches that were made of them."""
    deleted_objects: int = 0


class TierPlace:
    """The place that `--tier` names; `store` is None while it could not be opened."""

    def __init__(
        self,
        url: str,
        cluster_id: str,
        opens: Callable[[str], Store] | None = None,
        *,
        awaits_restore: bool = False,
    ) -> None:
        """With `awaits_restore`, a place of another cluster is waited for until this cluster takes
        it over (`take_over` of `semel.tier`)."""
        self.url = url
        self.cluster_id = cluster_id
        self.folder = cluster_id
        """The folder of all objects: the id of the cluster that began the tier."""
        self._awaits_restore = awaits_restore
        self.store: Store | None = None
        self.counters = TierCounters()
        self._opens = opens or (lambda url: open_store(url, LIMITS))
        self._why = "it is being opened"

    async def open(self) -> None:
        """Opens and claims the place. A store that does not answer is no error.

        Raises TierMisconfigured, TierDenied, ForeignTier, CorruptTier, InvalidRequest.
        """
        try:
            async with compat.timeout(OPEN_S):
                await self._open()
        except (TierUnavailable, TimeoutError) as error:
            self._failed(str(error) or f"no answer within {OPEN_S:g} s")
        except ForeignTier as error:
            if not self._awaits_restore or not await self._is_of_others():
                raise
            self._failed(f"{error}, or say `semel cluster restore --from {self.url}`")

    async def _is_of_others(self) -> bool:
        """Whether the place is a whole tier, of another cluster."""
        found = await self.look(lambda store: identity_of(store).cluster_id)
        return found != self.cluster_id

    async def look(self, work: Callable[[Store], T]) -> T:
        """Returns what `work` returns for the place, though it may not be this cluster's: it must
        not write. It runs on a thread."""
        return await in_thread(lambda: work(self._opens(self.url)))

    async def take_over(self, owner: str) -> None:
        """Makes the place of cluster `owner`, which is lost, this cluster's, and opens it. Raises
        as `open`, and TierUnavailable."""
        await in_thread(lambda: take_over(self._opens(self.url), self.cluster_id, owner))
        if self.store is None:
            await self._open()

    async def run(self) -> None:
        """Opens a place that did not answer at the start; returns once it is open."""
        pause_s = RETRY_MIN_S
        while self.store is None:
            await asyncio.sleep(pause_s)
            longest_s = RETRY_MIN_S if self._awaits_restore else RETRY_MAX_S
            pause_s = min(2 * pause_s, longest_s)
            try:
                await self._open()
            except SemelError as error:
                self._failed(str(error))
            else:
                logger.info("the object store answers again url=%s", self.url)

    async def _open(self) -> None:
        def work() -> tuple[Store, str]:
            store = self._opens(self.url)
            return store, claim(store, self.cluster_id)

        self.store, self.folder = await in_thread(work)

    def _failed(self, why: str) -> None:
        self.counters.errors += 1
        if why != self._why:
            logger.error("the object store cannot be used, it is tried again error=%s", why)
            self._why = why

    async def call(self, work: Callable[[Store], T]) -> T:
        """Returns what `work` returns, and raises what it raises; it runs on a thread.

        Raises TierUnavailable while the place is not open. A call that is cancelled may still take
        effect.
        """
        store = self.store
        if store is None:
            raise TierUnavailable(f"{self.url} cannot be used: {self._why}")
        return await in_thread(lambda: work(store))


def check_owner(store: Store, cluster_id: str) -> None:
    """BLOCKING. Raises TierMisconfigured if the place is no tier any more, as the folder of a mount
    that is gone; ForeignTier if it is another cluster's now."""
    if (owner := owner_of(store)) != cluster_id:
        raise ForeignTier(f"{store.url} belongs to cluster {owner!r} now, this is {cluster_id!r}")


async def in_thread(work: Callable[[], T]) -> T:
    """Runs blocking `work` on a thread that does not keep the process from ending."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def tell(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result: T | None = None
        failed: BaseException | None = None
        try:
            result = work()
        except BaseException as error:
            failed = error
        with contextlib.suppress(RuntimeError):  # the loop has ended, and with it who asked
            loop.call_soon_threadsafe(tell, result, failed)

    _THREADS.run(run)
    return await future


def calls_under_way() -> bool:
    """Whether a call of `in_thread` has not returned yet, whoever waits for it."""
    return _THREADS.busy > 0
