"""Which node of a group is asked next, until its master answers.

How it works. A caller knows some nodes of a group and does not know which of them is the master: a
`Round` gives it each node once. A node that is not the master may name the one that is, which is
asked next. `MasterSearch` adds what a failed call to a broker means: whether another node is asked,
and what the caller is told in the end. The caller makes the calls, keeps the time and decides
whether a round is followed by another.

Invariants
1. A round gives no address twice.
2. A search never ends with NotMaster. Its caller often answers a request itself, and whoever made
   that request would take NotMaster for a word about the caller's own group, and go to the nodes of
   the other one.
3. A search ends with an error of another class at once unless it is one that another node may not
   have.

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
        """`addresses` are asked in this order; empty ones are left out."""
        self._waiting = deque(addresses)
        self._asked = {""}

    def next(self) -> str:
        """HOST:PORT of the node to ask; "" when all were asked."""
        while self._waiting:
            address = self._waiting.popleft()
            if address not in self._asked:
                self._asked.add(address)
                return address
        return ""

    @property
    def over(self) -> bool:
        """No address waits to be looked at."""
        return not self._waiting

    def ask_next(self, address: str) -> None:
        """A node named this one as the master."""
        self._waiting.appendleft(address)

    def ask_too(self, addresses: Iterable[str]) -> None:
        """These are asked after all others."""
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
        """`group` names the group in errors; `passing` are the errors of one node after which
        another one is asked, by default those that say nothing about the request."""
        self._group = group
        self._passing = passing
        self._round = Round(addresses)
        self._last: SemelError | None = None

    def next(self) -> str:
        """HOST:PORT of the node to ask; "" when all were asked in this round."""
        return self._round.next()

    def again(self, addresses: Iterable[str]) -> None:
        """Begins a new round; the errors of the earlier ones are not forgotten."""
        self._round = Round(addresses)

    def on_error(self, error: SemelError, *, cut_short: bool = False) -> None:
        """The node that was asked last did not do it. Raises errors that do not pass.

        `cut_short` says that it had less time than others: its silence then does not replace what
        an earlier node said.
        """
        if not isinstance(error, self._passing):
            raise error
        if isinstance(error, NotMaster):
            self._round.ask_next(error.master_address)
        if self._last is None or not (cut_short and isinstance(error, TimedOut)):
            self._last = error

    @property
    def error(self) -> SemelError:
        """What the caller is told when it gives up: the last node's word, with the group's name."""
        match self._last:
            case None:
                return Unavailable(f"no node of {self._group} is known")
            case NotMaster(message=message):
                return Unavailable(f"{self._group} has no master: {message}")
            case Unavailable() | TimedOut() as last:
                return type(last)(f"{self._group}: {last.message}")
            case last:
                return last
