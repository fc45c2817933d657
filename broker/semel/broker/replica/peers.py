"""The members of the group as this node reaches them: addresses, and links that messages leave by.

How it works. `book` follows the log; `links` holds the sending side of the streams to each other
member. The node makes and ends links whenever `on_changed` says that the members changed.

Not here: what a link does (`replication/sender.py`), who is counted (`raft/membership_history.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from semel.broker.config import BrokerConfig
from semel.broker.replica.member_book import MemberBook, Members
from semel.broker.replication.sender import PeerLink
from semel.broker.state import Membership, State
from semel.protos.ids import NodeId


class Peers:
    """Members, addresses and links of one node's group."""

    def __init__(
        self,
        config: BrokerConfig,
        founding: Members,
        applied: Membership,
        logged: Mapping[int, Members],
    ) -> None:
        """`founding` are the members before any were logged, `applied` those of the state, and
        `logged` those of the entries that may still be truncated."""
        self._config = config
        self._founding = founding
        self.book = MemberBook(self.members_of(applied), applied.index, logged)
        self.links: dict[NodeId, PeerLink] = {}
        self.on_changed: Callable[[], None] = lambda: None

    @property
    def addresses(self) -> Mapping[NodeId, str]:
        """HOST:PORT of the members of the group, by the newest entry in the log."""
        return self.book.current.addresses

    @property
    def reachable(self) -> Mapping[NodeId, str]:
        """The same, with members that only another member has named so far."""
        return self.book.reachable

    def address_of(self, node: NodeId) -> str | None:
        """HOST:PORT at which this node reaches another member; None if the node is not a member."""
        member = self.book.reachable.get(node)
        return member and self._config.peers_at.get(node, member)

    def members_of(self, applied: Membership) -> Members:
        """The members that a state names; the founding ones before any were logged."""
        return Members.of_state(applied) or self._founding

    def hear(self, index: int, addresses: Mapping[NodeId, str]) -> bool:
        """A member names the members since entry `index`; True if this node did not know them."""
        news = self.book.hear(index, addresses)
        if news:
            self.on_changed()
        return news

    def append(self, logged: Mapping[int, Members]) -> None:
        """Membership entries are in the log, by index, and the last one is in force."""
        for index, members in logged.items():
            self.book.append(index, members)
        self.on_changed()

    def truncate(self, from_index: int) -> None:
        """Entries from `from_index` on are gone."""
        if self.book.truncate(from_index):
            self.on_changed()

    def install(self, state: State) -> None:
        """A snapshot has taken the place of log and state."""
        self.book.reset(self.members_of(state.membership), state.membership.index)
        self.on_changed()
