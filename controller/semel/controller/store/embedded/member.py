"""One controller's membership in the group: its files, its membership status, its open requests.

How it works. A member is *unformed* (its directory is empty), *non-counting* (its disk was lost)
or a *voter*. `tick` drives the consensus and returns what happened; the shell (`ticker.py`
with a thread, or a simulation step by step) passes in messages, connections and requests in
between.

*New group.* An unformed member becomes a voter when every other member has said, since this one
started, that it has no history: then no member can have promised anything, this one included.
No member stands for the first election before all others are voters; otherwise the slowest one
would find a history and conclude that it had lost its disk.

*Lost disk.* If there is a history, the member is non-counting: it takes entries and dumps under
another name than the voter it was, so that it counts in no majority, and gives no vote. It may have
forgotten two things: a vote, which the controller that received it remembers as its term, and
entries, which are on a quorum only if one without this member has them. So it asks all others for
their terms, and puts a barrier into the log. Once the barrier comes back in an entry of a term that
is not below any of those, a majority without this member has elected that term's master, and
everything before the barrier is here: the member takes over term and vote, durably, and is a voter
again.

*Requests* are repeated when there is another master, and from time to time: applying one twice has
no second effect (`machine.py`).

Invariants
1. The journal is durable before the hard state that says it exists.
2. A non-counting member becomes a voter only after it has taken over a term in which it cannot have
   voted differently.

Not here: threads (`ticker.py`), the network (`links.py`).
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from semel.controller.store.embedded import dump as dumps_module
from semel.controller.store.embedded.consensus import ConsensusNode, Peer, Send, controller_of
from semel.controller.store.embedded.dump import Dumps, RunAside
from semel.controller.store.embedded.exposed import now
from semel.controller.store.embedded.files import Files
from semel.controller.store.embedded.hard_state import FILE_NAME as HARD_STATE
from semel.controller.store.embedded.hard_state import HardState, HardStateFile
from semel.controller.store.embedded.identity import Identity, claim
from semel.controller.store.embedded.journal import FILE_NAMES, FIRST, JournalFiles
from semel.controller.store.embedded.machine import Applied, Machine, State, barrier_command
from semel.protos.errors import DataDirectoryError
from semel.protos.v1.metadata_store_pb2 import (
    CONTROLLER_MEMBERSHIP_NON_COUNTING,
    CONTROLLER_MEMBERSHIP_UNFORMED,
    CONTROLLER_MEMBERSHIP_VOTER,
    ControllerMembership,
    GroupMessage,
    MembershipReply,
)

log = logging.getLogger(__name__)

ASK_AGAIN_S: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """The result of one tick."""

    events: Sequence[Applied | State]
    """The applied commands in order; a State replaces everything before it."""
    membership: ControllerMembership
    incarnation: int
    """The incarnation that this controller puts into its requests."""
    master: int | None
    """The master, as far as this member knows."""
    led_term: int
    """The term in which this member is master; 0 when it is not."""
    lease_end: float
    """When this member's mastership ends unless it is renewed; `-inf` when it has none."""


@dataclass(slots=True)
class _Request:
    command: bytes
    asked_at: float = float("-inf")
    asked_whom: tuple[int, int] | None = None


class Member:
    """One controller in its group. One thread, except for `describe` and `must_ask`."""

    def __init__(
        self, files: Files, identity: Identity, *, send: Send, run_aside: RunAside
    ) -> None:
        """Opens the directory. Raises DataDirectoryError, and OSError if the disk fails."""
        claim(files, identity)
        self._files = files
        self._me = identity.controller_id
        self._others = tuple(one for one in identity.members if one != identity.controller_id)
        self._send = send
        self._run_aside = run_aside
        self._hard_state = HardStateFile(files)
        self._journal = JournalFiles(files)
        self._machine = Machine()
        self._applied_index = FIRST.index
        self._connected: set[Peer] = set()
        self._requests: dict[object, _Request] = {}
        self._rejoin: bytes = b""
        self._term_min: int | None = None
        self._initial: list[Applied | State] = []
        self.node: ConsensusNode | None = None
        """None while the member is unformed."""
        state = self._hard_state.state
        if state is not None:
            self._open(state)
        elif len(self._journal.entries) > 1 or dumps_module.load(files) is not None:
            raise DataDirectoryError(
                f"{files.where(HARD_STATE)} is missing beside {files.where(FILE_NAMES[0])}: this "
                "controller no longer knows its vote. Empty its directory and start it again: it "
                "gets everything from the others"
            )
        elif not self._others:
            self.form()

    @property
    def membership(self) -> ControllerMembership:
        """This member's membership status."""
        state = self._hard_state.state
        if state is None:
            return CONTROLLER_MEMBERSHIP_UNFORMED
        return CONTROLLER_MEMBERSHIP_VOTER if state.voter else CONTROLLER_MEMBERSHIP_NON_COUNTING

    def describe(self) -> MembershipReply:
        """The answer to a peer that asks for the status. Callable from any thread."""
        state = self._hard_state.state
        if state is None:
            return MembershipReply(membership=CONTROLLER_MEMBERSHIP_UNFORMED)
        return MembershipReply(
            membership=CONTROLLER_MEMBERSHIP_VOTER
            if state.voter
            else CONTROLLER_MEMBERSHIP_NON_COUNTING,
            term=state.term,
            has_history=state.term > 0 or not state.voter,
        )

    def learn(self, replies: Sequence[MembershipReply]) -> None:
        """Handles the replies that *all* others have given since this controller started."""
        assert len(replies) == len(self._others)
        if self.membership == CONTROLLER_MEMBERSHIP_UNFORMED:
            if any(reply.has_history for reply in replies):
                log.warning("this controller's disk was lost: it is not counted until it has all")
                self._begin(voter=False)
            else:
                self.form()
        elif self.membership == CONTROLLER_MEMBERSHIP_VOTER and self.node is not None:
            self.node.founded |= all(
                reply.membership == CONTROLLER_MEMBERSHIP_VOTER for reply in replies
            )
        if self.membership == CONTROLLER_MEMBERSHIP_NON_COUNTING:
            self._term_min = max(self._term_min or 0, *(reply.term for reply in replies))

    @property
    def must_ask(self) -> bool:
        """True while it needs the replies for `learn`. Callable from any thread."""
        state = self._hard_state.state
        return state is None or not state.voter or state.term == 0

    def form(self) -> None:
        """Becomes a voter of a group that has no history."""
        self._begin(voter=True)

    def connected(self, peer: Peer) -> None:
        """Notes that messages can be sent to the peer from now on."""
        self._connected.add(peer)
        if self.node is not None:
            self.node.connected(peer)

    def disconnected(self, peer: Peer) -> None:
        """Notes that messages to the peer are lost from now on."""
        self._connected.discard(peer)
        if self.node is not None:
            self.node.disconnected(peer)

    def receive(self, peer: Peer, message: GroupMessage, arrived: float | None = None) -> None:
        """Handles a checked message that arrived at that time, or now."""
        if self.node is not None:
            self.node.receive(peer, message, now() if arrived is None else arrived)

    def submit(self, key: object, command: bytes) -> None:
        """Requests a command again and again, until `resolved` is called with the same key."""
        self._requests[key] = _Request(command)

    def resolved(self, key: object) -> None:
        """Drops a request for which nobody waits any more; ignores unknown keys."""
        self._requests.pop(key, None)

    def resign(self) -> None:
        """Lets another member become master, if this one is."""
        if self.node is not None:
            self.node.resign()

    def tick(self, wait_s: float) -> Happened:
        """Does the work that is due. After an OSError or a SemelError the process must end."""
        events: list[Applied | State] = self._initial
        self._initial = []
        node = self.node
        if node is not None:
            self._ask(node)
            events = [*events, *node.tick(wait_s)]
            self._maybe_rejoin(node)
        state = self._hard_state.state
        master = None if self.node is None else self.node.master
        leads = self.node is not None and master == self._me
        return Happened(
            events=events,
            membership=self.membership,
            incarnation=0 if state is None else state.incarnation,
            master=master,
            led_term=self.node.term if self.node is not None and leads else 0,
            lease_end=self.node.lease_end if self.node is not None and leads else float("-inf"),
        )

    def close(self) -> None:
        """Ends the consensus; the files stay with their owner."""
        if self.node is not None:
            self.node.end()
            self.node = None

    def _open(self, state: HardState) -> None:
        dump = dumps_module.load(self._files)
        if not self._journal.entries:
            raise DataDirectoryError(
                f"{self._files.where(FILE_NAMES[0])} and its copy are missing. Empty this "
                "controller's directory and start it again: it gets everything from the others"
            )
        dumps_module.fit(self._journal, dump, self._files)
        if state.term < self._journal.last.term:
            raise DataDirectoryError(
                f"{self._files.where(HARD_STATE)} is older than the entries beside it: it says "
                f"term {state.term}, they go up to {self._journal.last.term}. Empty this "
                "controller's directory and start it again: it gets everything from the others"
            )
        if dump is not None:
            self._machine.restore(dump.state)
            self._applied_index = dump.last.index
            self._initial = [self._machine.state()]
        self._hard_state.save(replace(state, incarnation=state.incarnation + 1))
        self._start()

    def _begin(self, *, voter: bool) -> None:
        self._journal.replace([FIRST])
        self._hard_state.save(HardState(voter=voter, incarnation=1))
        self._start()

    def _start(self) -> None:
        state = self._hard_state.state
        assert state is not None
        self.node = ConsensusNode(
            (self._me, not state.voter),
            self._others,
            journal=self._journal,
            hard_state=self._hard_state,
            dumps=Dumps(self._files, self._machine.state, self._run_aside),
            machine=self._machine,
            applied_index=self._applied_index,
            where=self._files.where(FILE_NAMES[0]),
            send=self._send,
        )
        for peer in self._connected:
            self.node.connected(peer)

    def _ask(self, node: ConsensusNode) -> None:
        if not self._requests:
            return
        if node.is_leader:
            whom = (node.term, self._me)
        elif node.leader is not None:
            whom = (node.term, controller_of(node.leader))
        else:
            return
        for request in self._requests.values():
            if request.asked_whom != whom or now() - request.asked_at >= ASK_AGAIN_S:
                request.asked_whom, request.asked_at = whom, now()
                node.submit(request.command)

    def _maybe_rejoin(self, node: ConsensusNode) -> None:
        if self.membership != CONTROLLER_MEMBERSHIP_NON_COUNTING or self._term_min is None:
            return
        if node.compacting:  # its dump must not be completed while the next node runs
            return
        term = node.term_of_barrier(self._rejoin) if self._rejoin else None
        if term is None and self._rejoin:
            return
        if term is None or term < self._term_min or node.leader is None:
            self.resolved(self._rejoin)
            self._rejoin = secrets.token_bytes(16)
            self.submit(self._rejoin, barrier_command(self._rejoin))
            return
        self.resolved(self._rejoin)
        self._become_voter(node, controller_of(node.leader))

    def _become_voter(self, node: ConsensusNode, master: int) -> None:
        state = self._hard_state.state
        assert state is not None
        assert node.term >= state.term
        session = self._machine.sessions.get(self._me)
        known = 0 if session is None else session.incarnation
        self._journal.sync()
        self._applied_index = node.applied_index
        self._hard_state.save(
            replace(
                state,
                term=node.term,
                voted_for=master,
                voter=True,
                incarnation=max(state.incarnation, known) + 1,
            )
        )
        log.info("caught up; this controller is a voter again term=%d", node.term)
        node.end()
        self._start()
