"""A Kafka group in a simulated world: members as programs, a network that loses, a coordinator that
dies and comes back without memory. One seed replays a run.

How it works. Everything is an event of one queue, ordered by time. Members speak as Kafka's clients
do: they join, share out the partitions if they lead, sync, send heartbeats and commit, give up what
they have when told to rebalance, and join again. Requests and answers are late and may be lost. The
group is woken when it asks for it and at no other time, so a timer that is forgotten stops the
world. After `FAULTS_END_MS` one member dies, nothing else fails any more, and the group has to
become whole.

What is checked
1. A ticket is answered once.
2. Within a generation of one coordinator no two members have a partition.
3. A commit that counts is of the newest generation that any member was told of, and of a partition
   that the member has there.
4. In the end all living members are in one generation and have all partitions.
"""

from __future__ import annotations

import heapq
import itertools
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from semel.gateway.groups.kafka_group import KafkaGroup
from semel.gateway.groups.results import (
    GroupError,
    GroupLimits,
    Join,
    JoinResult,
    Leaver,
    Reply,
    Sync,
    SyncResult,
    Ticket,
)

PARTITIONS = 12
SESSION_MS = 3_000
REBALANCE_MS = 5_000
FAULTS_END_MS = 60_000
END_MS = 120_000
LIMITS = GroupLimits(initial_delay_ms=300, new_member_ms=8_000)


class Violation(AssertionError):
    """The group did what it must not."""


@dataclass
class _Client:
    """A consumer program."""

    name: str
    instance_id: str | None
    member_id: str = ""
    generation: int = -1
    epoch: int = 0
    """The coordinator that told the generation."""
    owned: frozenset[int] = frozenset()
    alive: bool = True
    asked: int = 0
    """The number of its last request; answers to earlier ones are ignored."""
    is_in: bool = False


@dataclass
class GroupWorld:
    """See the module's text."""

    seed: int
    kind: type[KafkaGroup] = KafkaGroup
    now_ms: int = 0
    clients: list[_Client] = field(default_factory=list)
    commits: int = 0
    """Commits that counted."""

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._numbers = itertools.count(1)
        self._callers: dict[Ticket, Callable[[JoinResult | SyncResult], None]] = {}
        self._newest: dict[int, int] = {}
        """The newest generation that was told, by coordinator."""
        self._shares: dict[tuple[int, int], dict[str, frozenset[int]]] = {}
        """What members were given, by coordinator and generation."""
        self.epoch = 0
        self._woken_at: int | None = None
        self._begin_coordinator()

    # --- events -----------------------------------------------------------------------------------

    def after(self, milliseconds: float, what: Callable[[], None]) -> None:
        at = self.now_ms + max(1, int(milliseconds))
        heapq.heappush(self._events, (at, next(self._order), what))

    def run(self) -> None:
        """Runs to the end. Raises Violation."""
        for _ in range(4):
            self.after(self._random.uniform(0, 2_000), self._start_client)
        self.after(1_000, self._fault)
        self.after(FAULTS_END_MS + 20_000, self._last_death)
        while self._events and self._events[0][0] <= END_MS:
            self.now_ms, _, what = heapq.heappop(self._events)
            what()
            self._plan_wake()
        self._check_whole()

    def _faults(self) -> bool:
        return self.now_ms < FAULTS_END_MS

    def _travel(self, what: Callable[[], None]) -> None:
        """Something is on its way, and perhaps never arrives."""
        if self._faults() and self._random.random() < 0.05:
            return
        slow = 20 if self._random.random() > 0.05 else 1_500
        self.after(self._random.uniform(1, slow), what)

    def _fault(self) -> None:
        if not self._faults():
            return
        living = [client for client in self.clients if client.alive]
        what = self._random.random()
        if what < 0.25 and len(living) > 1:
            self._random.choice(living).alive = False  # killed: it says nothing any more
            self.after(self._random.uniform(100, 6_000), self._start_client)
        elif what < 0.4 and len(living) > 1:
            client = self._random.choice(living)
            client.alive = False
            self._leave(client)
            self.after(self._random.uniform(100, 3_000), self._start_client)
        elif what < 0.5 and len(living) < 8:
            self._start_client()
        elif what < 0.6:
            self._begin_coordinator()
        elif what < 0.75:  # another process begins under the same instance
            static = [client.instance_id for client in living if client.instance_id is not None]
            if static:
                self._start_client(self._random.choice(static))
        self.after(self._random.uniform(500, 4_000), self._fault)

    def _last_death(self) -> None:
        """The last failure: nobody comes in the place of who dies."""
        living = [client for client in self.clients if client.alive]
        if len(living) > 1:
            self._random.choice(living).alive = False

    # --- the coordinator --------------------------------------------------------------------------

    def _begin_coordinator(self) -> None:
        """A coordinator takes over, and knows nobody."""
        self.epoch += 1
        numbers, epoch = itertools.count(1), self.epoch
        self.group = self.kind("g", LIMITS, lambda: f"{epoch}.{next(numbers)}")
        self._callers.clear()
        self._woken_at = None

    def _plan_wake(self) -> None:
        at = self.group.wake_ms
        if at is None or (self._woken_at is not None and self._woken_at <= at):
            return
        self._woken_at, group = at, self.group

        def wake() -> None:
            if group is self.group:
                self._woken_at = None
                group.on_time(self.now_ms)
                self._send(group)

        self.after(at - self.now_ms, wake)

    def _send(self, group: KafkaGroup) -> None:
        replies: list[Reply] = list(group.replies)
        group.replies.clear()
        for reply in replies:
            result = reply.result
            if isinstance(result, JoinResult) and result.error is GroupError.NONE:
                self._newest[self.epoch] = max(result.generation, self._newest.get(self.epoch, -1))
            caller = self._callers.pop(reply.ticket, None)
            if caller is None:
                raise Violation(f"ticket {reply.ticket} was answered twice")
            self._travel(lambda caller=caller, result=result: caller(result))  # type: ignore[misc]

    def _ask(
        self,
        client: _Client,
        request: Callable[[KafkaGroup, Ticket], None],
        answered: Callable[[JoinResult | SyncResult, int], None],
        patience_ms: int,
    ) -> None:
        """A request that is answered later. Without an answer the client begins anew."""
        number = client.asked = client.asked + 1

        def arrive() -> None:
            group, epoch = self.group, self.epoch
            ticket = Ticket(next(self._numbers))

            def back(result: JoinResult | SyncResult) -> None:
                if client.alive and client.asked == number:
                    answered(result, epoch)

            self._callers[ticket] = back
            request(group, ticket)
            self._send(group)

        def tired() -> None:
            if client.alive and client.asked == number and not client.is_in:
                self._join(client)

        self._travel(arrive)
        self.after(patience_ms, tired)

    # --- members ----------------------------------------------------------------------------------

    def _start_client(self, instance_id: str | None = None) -> None:
        name = f"m{len(self.clients)}"
        if instance_id is None and self._random.random() < 0.3:
            taken = {client.instance_id for client in self.clients if client.alive}
            free = [f"i{number}" for number in range(3) if f"i{number}" not in taken]
            instance_id = self._random.choice(free) if free else None
        client = _Client(name, instance_id)
        self.clients.append(client)
        self._join(client)

    def _join(self, client: _Client) -> None:
        client.owned, client.is_in = frozenset(), False
        join = Join(
            member_id=client.member_id,
            instance_id=client.instance_id,
            client_id=client.name,
            session_ms=SESSION_MS,
            rebalance_ms=REBALANCE_MS,
            protocol_type="consumer",
            protocols=(("range", client.name.encode()),),
            id_required=client.instance_id is None,
        )
        self._ask(
            client,
            lambda group, ticket: group.join(join, ticket, self.now_ms),
            lambda result, epoch: self._on_joined(client, result, epoch),
            REBALANCE_MS + 2_000,
        )

    def _on_joined(self, client: _Client, result: JoinResult | SyncResult, epoch: int) -> None:
        assert isinstance(result, JoinResult)
        if not self._goes_on(client, result.error):
            return
        if result.error is GroupError.MEMBER_ID_REQUIRED:
            client.member_id = result.member_id
            self._join(client)
            return
        client.member_id, client.generation, client.epoch = (
            result.member_id,
            result.generation,
            epoch,
        )
        shares: dict[str, list[int]] = {member.member_id: [] for member in result.members}
        for partition, member_id in zip(range(PARTITIONS), itertools.cycle(shares), strict=False):
            shares[member_id].append(partition)
        sync = Sync(
            member_id=result.member_id,
            generation=result.generation,
            instance_id=client.instance_id,
            assignments=tuple(
                (member_id, json.dumps(share).encode()) for member_id, share in shares.items()
            ),
        )
        self._ask(
            client,
            lambda group, ticket: group.sync(sync, ticket, self.now_ms),
            lambda result, epoch: self._on_synced(client, result, epoch),
            REBALANCE_MS + 2_000,
        )

    def _on_synced(self, client: _Client, result: JoinResult | SyncResult, epoch: int) -> None:
        assert isinstance(result, SyncResult)
        if not self._goes_on(client, result.error):
            return
        owned = frozenset(json.loads(result.assignment or b"[]"))
        given = self._shares.setdefault((epoch, client.generation), {})
        for other, share in given.items():
            if other != client.member_id and share & owned and not self._is_replaced(other, client):
                raise Violation(f"{client.name} and {other} both have {sorted(share & owned)}")
        given[client.member_id] = owned
        client.owned, client.is_in = owned, True
        self._beat(client, client.asked)
        self._commit(client, client.asked)

    def _is_replaced(self, member_id: str, client: _Client) -> bool:
        """The member is the process before the client under the same instance."""
        instance = client.instance_id
        return instance is not None and member_id.startswith(f"{instance}-")

    def _goes_on(self, client: _Client, error: GroupError) -> bool:
        """Does what Kafka's clients do after an error; False if there is nothing else to do."""
        match error:
            case GroupError.NONE | GroupError.MEMBER_ID_REQUIRED:
                return True
            case GroupError.FENCED_INSTANCE_ID:
                client.alive = False
            case GroupError.UNKNOWN_MEMBER_ID | GroupError.ILLEGAL_GENERATION:
                client.member_id = ""
                self._join(client)
            case GroupError.REBALANCE_IN_PROGRESS:
                self._join(client)
            case _:
                raise Violation(f"{client.name} got {error.name}")
        return False

    def _beat(self, client: _Client, number: int) -> None:
        if not client.alive or client.asked != number:
            return

        def arrive() -> None:
            error = self.group.heartbeat(
                client.member_id, client.instance_id, client.generation, self.now_ms
            )
            self._send(self.group)
            self._travel(lambda: back(error))

        def back(error: GroupError) -> None:
            if client.alive and client.asked == number:
                self._goes_on(client, error)

        self._travel(arrive)
        self.after(SESSION_MS / 6, lambda: self._beat(client, number))

    def _commit(self, client: _Client, number: int) -> None:
        """Commits, also what it was given before it noticed that it has it no more."""
        if not client.alive or client.asked != number:
            return
        generation, epoch, owned = client.generation, client.epoch, client.owned
        member_id = client.member_id

        def arrive() -> None:
            error = self.group.check_commit(member_id, client.instance_id, generation, self.now_ms)
            self._send(self.group)
            if error is not GroupError.NONE:
                return
            self.commits += 1
            if epoch != self.epoch or generation != self._newest.get(epoch):
                raise Violation(f"a commit of generation {generation} counted late")
            if self._shares[epoch, generation].get(member_id) != owned:
                raise Violation(f"{client.name} committed what it does not have")

        if owned:
            self._travel(arrive)
        self.after(self._random.uniform(100, 800), lambda: self._commit(client, number))

    def _leave(self, client: _Client) -> None:
        leaver = Leaver(member_id=client.member_id, instance_id=client.instance_id)

        def arrive() -> None:
            self.group.leave(leaver, self.now_ms)
            self._send(self.group)

        self._travel(arrive)

    # --- the end ----------------------------------------------------------------------------------

    def _check_whole(self) -> None:
        living = [client for client in self.clients if client.alive]
        if not all(client.is_in for client in living):
            raise Violation(f"not in the group: {[c.name for c in living if not c.is_in]}")
        if len({(client.epoch, client.generation) for client in living}) != 1:
            raise Violation("members are in several generations")
        owned = sorted(partition for client in living for partition in client.owned)
        if owned != list(range(PARTITIONS)):
            raise Violation(f"the members have {owned}")
