"""What the principals and topics with a quota have used at one node: their buckets.

How it works. A node has one `Meters`. Whoever learns the quotas gives them to it (`take`). For a
principal or a topic it finds the buckets of all that limits it, by kind (`Rates`). A bucket is made
when it is first needed, and stays the same one while its quota only changes its limit.

Invariants
1. There are at most `METERS_MAX` buckets that are not in use, and each belongs to a quota.
2. What `rates_of` returned is not used any more once `version` has changed.

Not here: which quota applies (`quotas.py`), who waits (the node's streams and calls).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable
from typing import Final

from semel.protos.errors import Throttled
from semel.protos.security.buckets import Bucket
from semel.protos.security.quotas import (
    NOBODY,
    RATES,
    Limit,
    QuotaBook,
    QuotaKind,
    quota_book_of,
)
from semel.protos.v1.metadata_pb2 import RightsRecord

METERS_MAX: Final = 10_000
SHOWN_MAX: Final = 100
"""Meters that have a line on a metrics page."""
_FREED: Final = 1e18
"""The rate of a bucket without a limit."""


class Meter:
    """The bucket of one owner and kind, and how long others waited for it."""

    __slots__ = ("bucket", "kind", "owner", "throttled_s", "used", "waited")

    def __init__(self, limit: Limit, now_s: float) -> None:
        self.owner = limit.owner
        self.kind = limit.kind
        self.bucket = Bucket(limit.limit, now_s)
        self.throttled_s = 0.0
        """How long streams and calls have waited for it, all together."""
        self.used = 0.0
        """All that was taken out."""
        self.waited = False
        """Somebody waited since this was set to False."""

    def take(self, cost: float, now_s: float) -> float:
        """Takes `cost` out; returns its mark."""
        self.used += cost
        return self.bucket.reserve(cost, now_s)

    def put_back(self, mark: float, cost: float) -> None:
        """What got `mark` for `cost` does not pass."""
        self.used -= cost
        self.bucket.put_back(mark, cost)

    def on_wait(self, seconds: float) -> None:
        """Something waits, or has waited, for this long."""
        self.throttled_s += seconds
        self.waited = True


class Rates:
    """The meters of everything that limits one principal or topic, by kind."""

    __slots__ = ("messages", "read_bytes", "requests", "write_bytes")

    def __init__(self, meters: Iterable[Meter]) -> None:
        found: dict[QuotaKind, list[Meter]] = {kind: [] for kind in RATES}
        for meter in meters:
            found[meter.kind].append(meter)
        self.write_bytes = tuple(found[QuotaKind.WRITE_BYTES])
        self.read_bytes = tuple(found[QuotaKind.READ_BYTES])
        self.messages = tuple(found[QuotaKind.MESSAGES])
        self.requests = tuple(found[QuotaKind.REQUESTS])


FREE: Final = Rates(())
"""No limits."""


class Meters:
    """All meters of one node. Lives on its event loop."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        """`clock_s` is a monotonic clock."""
        self.clock_s = clock_s
        self.version = 0
        """Rises whenever other limits apply."""
        self.book = QuotaBook({})
        self.active = False
        """There is a quota."""
        self.record_version = -1
        """Version of the quotas that apply; -1 for none."""
        self._meters: dict[tuple[str, QuotaKind], Meter] = {}
        self._rates: dict[str, Rates] = {}

    def take(self, record: RightsRecord) -> None:
        """From now on these quotas apply, unless newer ones do already. Raises InvalidRequest for
        a record that this program does not understand; then those of before apply."""
        if record.version > self.record_version:
            self.book = quota_book_of(record)
            self.record_version = record.version
            self._refresh()

    def _refresh(self) -> None:
        """Limits have changed."""
        self.active = not self.book.empty
        self._rates.clear()
        self.version += 1
        now_s = self.clock_s()
        for key, meter in list(self._meters.items()):
            limit = self._limit(*key)
            if limit is None:
                del self._meters[key]
                meter.bucket.set_rate(_FREED, now_s)  # for those that wait for it
            else:
                meter.bucket.set_rate(limit.limit, now_s)

    def rates_of_principal(self, principal: str) -> Rates:
        """What limits a user; "" for everybody without a name."""
        return self._rates_of(principal or NOBODY, self.book.of_principal(principal))

    def rates_of_topic(self, name: str) -> Rates:
        """What limits all who use a topic."""
        return self._rates_of(f"topic:{name}", self.book.of_topic(name))

    def limits_of(self, principal: str, kind: QuotaKind) -> list[Limit]:
        """The limits of a kind for a user; "" for everybody without a name."""
        return [each for each in self.book.of_principal(principal) if each.kind is kind]

    def reached(
        self, principal: str, kind: QuotaKind, count_of: Callable[[str], int]
    ) -> tuple[Limit, int] | None:
        """The first limit that has no room for one more, and how many there are; `count_of` returns
        how many a user has ("" for everybody without a name)."""
        for limit in self.limits_of(principal, kind):
            users = self.book.members_of(limit.owner)
            count = sum(count_of("" if user == NOBODY else user) for user in users)
            if count >= limit.limit:
                return limit, count
        return None

    def limit_of_topic(self, name: str, kind: QuotaKind) -> Limit | None:
        """The limit of a kind for a topic."""
        return next((each for each in self.book.of_topic(name) if each.kind is kind), None)

    def take_request(self, principal: str) -> None:
        """Counts one call. Raises Throttled."""
        now_s = self.clock_s()
        meters = self.rates_of_principal(principal).requests
        for meter in meters:
            wait_s = meter.bucket.wait_s(now_s)
            if wait_s > 0:
                meter.on_wait(wait_s)
                raise Throttled(
                    f"{meter.owner} makes more than {meter.bucket.rate:,.0f} requests a second:"
                    " ask again later",
                    retry_after_ms=math.ceil(wait_s * 1000),
                )
        for meter in meters:
            meter.take(1, now_s)

    def shown(self) -> list[Meter]:
        """The meters for a metrics page: those for which others waited longest."""
        return heapq.nsmallest(
            SHOWN_MAX, self._meters.values(), key=lambda each: (-each.throttled_s, each.owner)
        )

    def _rates_of(self, owner: str, limits: tuple[Limit, ...]) -> Rates:
        known = self._rates.get(owner)
        if known is None:
            if len(self._rates) >= METERS_MAX:
                self._rates.clear()
                self.version += 1
            rates = [self._meter(limit) for limit in limits if limit.kind in RATES]
            known = self._rates[owner] = Rates(rates) if rates else FREE
        return known

    def _meter(self, limit: Limit) -> Meter:
        key = (limit.owner, limit.kind)
        meter = self._meters.get(key)
        if meter is None:
            now_s = self.clock_s()
            if len(self._meters) >= METERS_MAX:
                self._drop_unused(now_s)
            meter = self._meters[key] = Meter(limit, now_s)
        return meter

    def _limit(self, owner: str, kind: QuotaKind) -> Limit | None:
        """The quota behind a meter; None if it was removed."""
        if owner.startswith("topic:"):
            limits = self.book.of_topic(owner.partition(":")[2])
        elif owner.startswith("group:"):
            limits = self.book.of_group(owner)
        else:
            limits = self.book.of_principal(owner)
        return next((each for each in limits if each.kind is kind and each.owner == owner), None)

    def _drop_unused(self, now_s: float) -> None:
        unused = [key for key, meter in self._meters.items() if meter.bucket.is_full(now_s)]
        for key in unused:
            del self._meters[key]
        self._rates.clear()
        self.version += 1
