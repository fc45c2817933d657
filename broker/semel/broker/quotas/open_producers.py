"""How many producers of each user are open on this broker group, for those with a quota.

How it works. A producer is open from the call with which it opens a queue until it has sent and
opened nothing for `IDLE_S`. The master notes the producers of users with a quota, in the order in
which they were heard of last, so that those that are idle are found in front. A new master hears of
them when they open their queues or send to it.

Invariants
1. No more are noted for a user than its quota allows, and those heard of while it was higher.

Not here: the quota (`protos/security/quotas.py`), who makes the call (`server/producer_calls.py`).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from semel.protos.errors import Throttled
from semel.protos.security.meters import Meters
from semel.protos.security.quotas import Limit, QuotaKind

IDLE_S: Final = 600.0
_RETRY_MS: Final = 5_000


class OpenProducers:
    """The open producers of users with a quota."""

    def __init__(self, meters: Meters) -> None:
        self._meters = meters
        self._heard: dict[str, OrderedDict[int, float]] = {}
        """When each producer of a user was heard of, the latest at the end."""

    def limits(self, principal: str) -> bool:
        """Whether the user has a quota of producers."""
        return bool(self._meters.limits_of(principal, QuotaKind.PRODUCERS))

    def on_open(self, principal: str, producer_id: int) -> None:
        """A producer of the user opens queues. Raises Throttled if it is one too many."""
        if not self.limits(principal):
            self._heard.pop(principal, None)
            return
        heard = self._heard.setdefault(principal, OrderedDict())
        if producer_id not in heard and (reached := self._reached(principal)) is not None:
            limit, count = reached
            raise Throttled(
                f"{limit.owner} has {count:,} producers open on this broker group, and its quota is"
                f" {limit.limit:,}: one counts until it was idle for {IDLE_S / 60:.0f} minutes",
                retry_after_ms=_RETRY_MS,
            )
        self._note(heard, producer_id)

    def on_batch(self, principal: str, producer_id: int) -> None:
        """A producer of a user with a quota sends something."""
        heard = self._heard.setdefault(principal, OrderedDict())
        if producer_id in heard or self._reached(principal) is None:
            self._note(heard, producer_id)

    def _note(self, heard: OrderedDict[int, float], producer_id: int) -> None:
        heard[producer_id] = self._meters.clock_s()
        heard.move_to_end(producer_id)

    def _reached(self, principal: str) -> tuple[Limit, int] | None:
        """The limit that has no room for one more, and how many there are."""
        return self._meters.reached(principal, QuotaKind.PRODUCERS, self._count)

    def _count(self, principal: str) -> int:
        heard = self._heard.get(principal)
        if not heard:
            return 0
        oldest_s = self._meters.clock_s() - IDLE_S
        while heard and next(iter(heard.values())) < oldest_s:
            heard.popitem(last=False)
        return len(heard)
