"""The order in which the nodes of a group are asked until the master answers.

How it works. A caller knows some nodes of a group and does not know which of them is the master. A
`Round` gives it each node once. A node that is not the master may name the master, which is asked
next. `MasterSearch` interprets the errors of calls to brokers: it decides whether another node is
asked, and which error the caller gets in the end. The caller makes the calls, keeps the time and
decides whether another round follows.

Invariants
1. A round gives no address twice.
2. A search never ends with NotMaster. Its caller is often a broker that serves a request of its
   own client. That client would take NotMaster for an answer about the broker's group, and would
   ask the nodes of the wrong group from then on.
3. An error that another node might not give lets the search go on. Any other error ends it at once.

Not here: the calls (`channels.py`); clients, which keep each group's master and its term, ask all
nodes at once for a new one and share the search between calls (`transport/cluster.py` in the
client).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from semel.protos.errors import NotMaster, SemelError, TimedOut, Unavailable

_SILENT: Final = (NotMaster, Unavailable, TimedOut)


class Round:
    """The nodes that one call may ask, each at most once."""

    def __init__(self, addresses: Iterable[str] = ()) -> None:
        """Takes the addresses to ask, in this order; empty ones are left out."""
        self._waiting = deque(addresses)
        self._asked = {""}

    def next(self) -> str:
        """Returns HOST:PORT of the node to ask, or "" when all were asked."""
        while self._waiting:
            address = self._waiting.popleft()
            if address not in self._asked:
                self._asked.add(address)
                return address
        return ""

    @property
    def over(self) -> bool:
        """Every address known so far was asked."""
        return self._asked.issuperset(self._waiting)

    def ask_next(self, address: str) -> None:
        """Takes the address that a node gave for the master: it is asked next."""
        self._waiting.appendleft(address)

    def ask_too(self, addresses: Iterable[str]) -> None:
        """Has these asked after all others."""
        self._waiting.extend(one for one in addresses if one not in self._asked)


class MasterSearch:
    """One request's search for the master of a broker group."""

    def __init__(
        self,
        group: str,
        addresses: Iterable[str] = (),
        *,
        passing: tuple[type[SemelError], ...] = _SILENT,
    ) -> None:
        """`group` names the group in errors. `passing` are the errors after which another node is
        asked, by default those that say nothing about the request."""
        self._group = group
        self._passing = passing
        self._round = Round(addresses)
        self._last: SemelError | None = None

    def next(self) -> str:
        """Returns HOST:PORT of the node to ask, or "" when all were asked in this round."""
        return self._round.next()

    def again(self, addresses: Iterable[str]) -> None:
        """Begins a new round, and remembers the errors of the earlier ones."""
        self._round = Round(addresses)

    def on_error(self, error: SemelError, *, cut_short: bool = False) -> None:
        """Handles the error of the node that was asked last. Raises it if the search ends with it.

        `cut_short` says that the node had less time than others. If it was silent, that does not
        replace the error of an earlier node.
        """
        if not isinstance(error, self._passing):
            raise error
        if isinstance(error, NotMaster):
            self._round.ask_next(error.master_address)
        if self._last is None or not (cut_short and isinstance(error, TimedOut)):
            self._last = error

    @property
    def error(self) -> SemelError:
        """The error for a caller that gives up: the last node's, with the group's name."""
        match self._last:
            case None:
                return Unavailable(f"no node of {self._group} is known")
            case NotMaster(message=message):
                return Unavailable(f"{self._group} has no master: {message}")
            case Unavailable() | TimedOut() as last:
                return type(last)(f"{self._group}: {last.message}")
            case last:
                return last
