"""What one node may let pass, counted by hand: accounts of everybody who has a quota of rates.

How it works. Each node process has a `Ledger`. It hears the quotas that the node has heard, and is
told of all that comes and passes. An *item* is something that may have to wait: it is entered into
the accounts of its user or topic when it comes, and passes later. What is let in at once and
counted afterwards is *taken*. An account is a line at a counter that serves at one rate, and keeps
what nobody used for a second; whoever leaves the line was never there. It is in *debt* while
somebody who comes would have to wait.

It raises `Wrong` when something passes before its turn, and when something waits without a reason.

Not here: what is told to it (`quota_watch.py`). The product's way to count is `buckets.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from semel.protos.security.quotas import QuotaKind

BURST_S: Final = 1.0
LOOK_S: Final = 0.45
"""A stream that waits looks so often whether it still has to, at the latest."""
READ_S: Final = 1.0
"""What was about to be read when a quota was used up leaves within this time."""
PARTS_S: Final = 0.05
"""A node takes the parts of an answer out while it reads them, and the whole is told here later: a
full account gets what comes meanwhile once more there, and not here."""
POLL_S: Final = 10.0
"""A fetch that has waited for a quota may wait so long for news before it is answered."""
EPSILON: Final = 1e-6
NOBODY: Final = "user:"
_OF_READS: Final = (QuotaKind.READ_BYTES, QuotaKind.REQUESTS)
Quotas = Mapping[tuple[str, QuotaKind], int]
"""Limits by subject and kind."""


class Wrong(Exception):
    """A quota was not kept, or somebody waited for nothing."""


@dataclass(slots=True)
class _Place:
    """Somebody in a line."""

    cost: float
    passed: bool = False
    may_since_s: float | None = None
    """Since when it may pass; None while it may not."""


class Account:
    """The line of one owner and kind."""

    def __init__(self, name: str, rate: float, now_s: float) -> None:
        self.name = name
        self.rate = rate
        self.begun_s = now_s
        self.gone_s: float | None = None
        """When its quota was removed."""
        self.debt_since_s = self.debt_until_s = -1.0
        """The newest debt."""
        self._filled = rate * BURST_S
        self._at_s = now_s
        self._passed = 0.0
        """Costs in front of the line."""
        self._line: dict[int, _Place] = {}
        """All that came, but for those in front that have passed."""
        self._number = 0

    @property
    def at_s(self) -> float:
        """Up to when it is filled in."""
        return self._at_s

    def enter(self, cost: float, now_s: float, *, passed: bool = False) -> int:
        """Somebody comes, or has passed already; returns its number."""
        self._fill(now_s)
        self._number += 1
        self._line[self._number] = _Place(cost, passed)
        self._shorten()
        self._look()
        return self._number

    def leave(self, number: int, now_s: float) -> None:
        """Somebody gives up."""
        self._fill(now_s)
        if self.gone_s is None and self._line.pop(number, None) is not None:
            self._shorten()
            self._cut()
            self._look()

    def may_since_s(self, number: int, now_s: float) -> float | None:
        """Since when somebody may pass; None if it may not."""
        if self.gone_s is not None:
            return self.gone_s
        self._fill(now_s)
        return self._line[number].may_since_s

    def on_pass(self, number: int) -> None:
        """Somebody passes; it keeps its place in front of those behind it."""
        if number in self._line:
            self._line[number].passed = True
            self._shorten()

    def debt_s(self, now_s: float) -> float:
        """Seconds until nobody has to wait any more; 0 for now."""
        return max(0.0, (self._total - self._filled) / self.rate - (now_s - self._at_s))

    def set_rate(self, rate: float, now_s: float) -> None:
        """Another quota counts from now on; what is owed stays owed."""
        self._fill(now_s)
        self.rate = rate
        self._cut()
        self._look()

    def end(self, now_s: float) -> None:
        """Its quota was removed."""
        self.gone_s = now_s
        self.debt_until_s = min(self.debt_until_s, now_s)

    @property
    def _total(self) -> float:
        return self._passed + sum(place.cost for place in self._line.values())

    def _fill(self, now_s: float) -> None:
        began_s, self._at_s = self._at_s, now_s
        self._filled += (now_s - began_s) * self.rate
        self._cut()
        self._note_turns(began_s)

    def _cut(self) -> None:
        self._filled = min(self._filled, self._total + self.rate * BURST_S)

    def _note_turns(self, began_s: float) -> None:
        """Notes who may pass now, and since when, with what was filled in from `began_s` on."""
        before = self._passed
        for place in self._line.values():
            more = self._filled - before
            if more < -EPSILON * max(1.0, before):
                return
            if place.may_since_s is None:
                place.may_since_s = max(began_s, self._at_s - max(0.0, more) / self.rate)
            before += place.cost

    def _look(self) -> None:
        """The line, or the rate, is another one."""
        self._note_turns(self._at_s)
        left_s = max(0.0, (self._total - self._filled) / self.rate)
        if self.debt_until_s < self._at_s + EPSILON and left_s > 0:
            # A debt that ends now is over: those who waited for it may all begin to read.
            self.debt_since_s = self._at_s
        if self.debt_until_s >= self._at_s or left_s > 0:
            self.debt_until_s = self._at_s + left_s

    def _shorten(self) -> None:
        while self._line:
            first = next(iter(self._line))
            if not self._line[first].passed:
                return
            self._passed += self._line.pop(first).cost


@dataclass(slots=True, eq=False)
class Item:
    """Something that came, and where it stands in line."""

    what: str
    came_s: float
    places: list[tuple[Account, int]]
    over: bool = False
    """It has passed, or given up."""


@dataclass(eq=False)
class Ledger:
    """The accounts of one node process."""

    name: str
    born_s: float
    quotas: Quotas = field(default_factory=dict)
    """What the node has heard."""
    version: int = -1
    _accounts: dict[tuple[str, QuotaKind], Account] = field(default_factory=dict)
    _gone: dict[tuple[str, QuotaKind], Account] = field(default_factory=dict)
    """The newest account of each quota that was removed."""

    def hear(self, version: int, quotas: Quotas, now_s: float) -> None:
        """The node has heard quotas."""
        if version <= self.version:
            return
        self.version, self.quotas = version, quotas
        for (owner, kind), account in list(self._accounts.items()):
            limit = self.limit(owner, kind)
            if limit is None:
                account.end(now_s)
                self._gone[owner, kind] = self._accounts.pop((owner, kind))
            elif limit != account.rate:
                account.set_rate(limit, now_s)

    def limit(self, owner: str, kind: QuotaKind) -> int | None:
        """The quota that counts for `user:NAME` or `topic:NAME`."""
        subjects = [owner or NOBODY, "*"]
        if owner.startswith("topic:"):
            patterns = {subject for subject, _ in self.quotas if subject.endswith("*")} - {"*"}
            fitting = (each for each in patterns if owner.startswith(each[:-1]))
            subjects = [owner, *sorted(fitting, key=len, reverse=True)]
        found = (self.quotas.get((subject, kind)) for subject in subjects)
        return next((limit for limit in found if limit is not None), None)

    def begins(self, owner: str, kind: QuotaKind, now_s: float) -> None:
        """The node counts an owner's use from now on. It has a second's worth by the quota of this
        time, which another one may follow before anything is used."""
        self._account(owner, kind, now_s)

    # --- what may wait

    def comes(self, what: str, owner: str, costs: Mapping[QuotaKind, float], now_s: float) -> Item:
        """Something of an owner comes."""
        places = [
            (account, account.enter(cost, now_s))
            for kind, cost in costs.items()
            if (account := self._account(owner, kind, now_s)) is not None
        ]
        return Item(f"{what} of {owner or NOBODY}", now_s, places)

    def passes(self, item: Item, now_s: float, *, excused: bool = False) -> bool:
        """It passes; True if it has waited. `excused`: the node stood still meanwhile."""
        if item.over:
            return False
        item.over = True
        since_s = item.came_s
        for account, number in item.places:
            may_s = account.may_since_s(number, now_s)
            if may_s is None:
                raise Wrong(f"{self.name}: {item.what} passes beyond {account.name}")
            account.on_pass(number)
            since_s = max(since_s, may_s)
        if now_s - since_s > LOOK_S and not excused:
            raise Wrong(
                f"{self.name}: {item.what} has waited for nothing since {since_s:.3f}, it is"
                f" {now_s:.3f}"
            )
        return now_s - item.came_s > EPSILON

    def gives_up(self, item: Item, now_s: float) -> None:
        """It does not pass."""
        if not item.over:
            item.over = True
            for account, number in item.places:
                account.leave(number, now_s)

    # --- calls and reads

    def served(self, owner: str, now_s: float) -> None:
        """A call was served."""
        account = self._account(owner, QuotaKind.REQUESTS, now_s)
        if account is not None:
            if account.debt_s(now_s) > EPSILON:
                raise Wrong(f"{self.name}: a call of {owner or NOBODY} beyond {account.name}")
            account.enter(1, now_s, passed=True)

    def refused(self, owner: str, now_s: float) -> None:
        """A call was told to come back later."""
        account = self._account(owner, QuotaKind.REQUESTS, now_s)
        if account is None or account.debt_s(now_s) == 0:
            raise Wrong(f"{self.name}: a call of {owner or NOBODY} was refused within its quota")

    def takes(self, owner: str, kind: QuotaKind, cost: float, now_s: float) -> None:
        """Something was let in, and counts from now on."""
        account = self._account(owner, kind, now_s)
        if account is not None:
            account.enter(cost, now_s, passed=True)

    def reads(
        self,
        owner: str,
        size: int,
        now_s: float,
        *,
        read_s: float | None = None,
        excused: bool = False,
    ) -> None:
        """An answer with so many bytes of a user or a topic leaves. The node began to read them at
        `read_s`, now if it is None: what began before there was a quota does not count."""
        read_s = now_s if read_s is None else read_s
        kinds = _OF_READS[:1] if owner.startswith("topic:") else _OF_READS
        for kind in kinds:
            account = self._account(owner, kind, now_s)
            if account is None or excused or account.begun_s > read_s:
                continue
            if account.debt_since_s < now_s - READ_S and account.debt_s(now_s) > PARTS_S:
                raise Wrong(f"{self.name}: {size} bytes are read beyond {account.name}")
        account = self._account(owner, QuotaKind.READ_BYTES, now_s)
        if account is not None and account.begun_s <= read_s:
            account.enter(size, max(read_s, account.at_s), passed=True)

    def waited(self, owner: str, seconds: float, now_s: float, *, excused: bool = False) -> None:
        """An answer leaves that has waited for a quota of its user, or of a topic that this node
        has or had: a queue may move away while an answer with its messages waits."""
        ends = [
            account.debt_until_s
            for accounts in (self._accounts, self._gone)
            for (whose, kind), account in accounts.items()
            if kind in _OF_READS and (whose == (owner or NOBODY) or whose.startswith("topic:"))
        ]
        if not excused and max(ends, default=-1.0) < now_s - POLL_S:
            raise Wrong(f"{self.name}: a reader has waited {seconds:.3f} s for nothing")

    def _account(self, owner: str, kind: QuotaKind, now_s: float) -> Account | None:
        owner = owner or NOBODY
        account = self._accounts.get((owner, kind))
        if account is None and (limit := self.limit(owner, kind)) is not None:
            account = Account(f"the {kind.value} of {owner}", limit, now_s)
            self._accounts[owner, kind] = account
        return account
