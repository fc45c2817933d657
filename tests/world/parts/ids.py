"""Topics that compare message ids, with producers that send the same messages again and again.

How it works. A *repeater* speaks the produce protocol itself (`repeaters.py`). A *notary* makes the
topics, and compares at the end what the log says (`tests/checking/message_ids.py`) with what
producers were told, what is in the queues, and what is in the index of each node. Windows,
memory, runs and chunks are so small that all that happens to an index happens all the time. The
index of a node is lost, damaged, or finds no room (`id_disk.py`).

What must hold besides: ids are missing in an index only after something has lost them, an index is
damaged only after something has damaged it, and no node goes on as master while ids are missing in
its index.

In some worlds of several broker groups *payers* send through the SDK, which chooses the queues
(`payers.py`): no id of theirs may be stored by two groups.

In some worlds messages that are delayed are cancelled by their ids (`cancellers.py`), and in some
the topics have retention: the ids of what is trimmed stay known.

Not here: transactions of such topics (`bankers.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final
from unittest.mock import patch

from semel.broker.dedup.id_store import CorruptIndex
from semel.broker.replica.id_indexes import Lacking
from semel.broker.replica.mastership import Mastership
from semel.broker.replica.message_ids import MessageIds
from semel.broker.replica.replica import Replica
from semel.client.transport import produce_stream
from semel.controller.topics import rules
from semel.protos.v1 import common_pb2
from tests.world import cancellers, notary  # noqa: F401
from tests.world.id_sizes import TOPICS, Sizes
from tests.world.nemesis import Nemesis
from tests.world.nodes import BrokerHost
from tests.world.parts import moves
from tests.world.payers import watched_encode
from tests.world.plan import Plan, Step, draw_groups, over_groups, with_clients, with_steps
from tests.world.registry import Part, add_part, fault, random_of
from tests.world.repeaters import SentIds
from tests.world.run import Run

_RESIGNS_S: Final = 0.05
"""Time after which a node whose index lacks ids is no master any more."""


# --- faults


@fault("index lost")
def _index_lost(nemesis: Nemesis) -> None:
    """Somebody deletes the directory of a node's index."""
    _lose(nemesis, nemesis.one())


@fault("all indexes lost")
def _all_indexes_lost(nemesis: Nemesis) -> None:
    for host in nemesis.hosts:
        _lose(nemesis, host)


def _lose(nemesis: Nemesis, host: BrokerHost) -> None:
    nemesis.die(host, "kill before an index is deleted")
    if host.ids.lose():
        nemesis.world.fault("index lost")


@fault("index damaged")
def _index_damaged(nemesis: Nemesis) -> None:
    if _one(nemesis).ids.rot():
        nemesis.world.fault("index damaged")


@fault("index disk full")
def _index_disk_full(nemesis: Nemesis) -> None:
    host = _one(nemesis)
    host.ids.full = True

    def end() -> None:
        host.ids.full = False
        if host.ids.refused:
            nemesis.world.fault("index disk full")
        host.ids.refused = 0

    nemesis.world.later(nemesis.random.choice((0.1, 0.4, 1.2)), end)


def _one(nemesis: Nemesis) -> BrokerHost:
    """The master more often than another node."""
    return (nemesis.master() if nemesis.random.random() < 0.5 else None) or nemesis.one()


@fault("move ids")
def _move(nemesis: Nemesis) -> None:
    job = moves.move_queue(TOPICS, nemesis.random.random())
    nemesis.run.operator.ask("moved a queue with ids", job, once=True)


@fault("move ids there and back")
def _move_back(nemesis: Nemesis) -> None:
    job = moves.move_there_and_back(TOPICS, nemesis.random.random())
    nemesis.run.operator.ask("moved a queue with ids there and back", job, once=True)


@fault("move ids and cancel")
def _cancel_move(nemesis: Nemesis) -> None:
    pause_s = nemesis.random.choice((0.0, 0.01, 0.03, 0.06, 0.1))
    job = moves.move_and_cancel(TOPICS, nemesis.random.random(), pause_s)
    nemesis.run.operator.ask("moved a queue with ids and gave it up", job, once=True)


# --- the part

_KINDS: Final = (
    *("index lost",) * 3,
    *("index damaged",) * 4,
    *("index disk full",) * 3,
    "all indexes lost",
    *("kill master",) * 3,
    *("two masters", "heal", "transfer", "checkpoint", "checkpoint", "checkpoint"),
    *("all lose power", "planned restart", "kill", "long absence", "isolate master", "heal"),
)


def with_ids(plan: Plan) -> Plan:
    random = random_of(plan, "ids")
    end_s = plan.duration_s + 1.5
    # In some worlds no index is lost at all: there the window may begin anew for no reason.
    kinds = [kind for kind in _KINDS if random.random() < 0.7]
    if random.random() < 0.3:
        kinds = [kind for kind in kinds if "index" not in kind or "full" in kind]
    steps = [
        Step(round(random.uniform(0.2, end_s), 6), kind, random.getrandbits(32))
        for kind in (random.choices(kinds, k=random.choice((3, 6, 10))) if kinds else ())
    ]
    if random.random() < 0.4 and plan.size > 1:  # ids are accepted that are never applied
        at = random.uniform(0.3, 1.0)
        row = ((at, "two masters"), (at + 1.2, "heal"))
        steps += [Step(round(when, 6), kind, random.getrandbits(32)) for when, kind in row]
        end_s = max(end_s, at + 1.5)
    longer = replace(with_steps(plan, steps), duration_s=end_s)
    repeaters = (f"repeater {number}" for number in range(1, random.choice((3, 4, 6)) + 1))
    clients = ["notary 1", *repeaters, "browser 1"]
    if Sizes(plan).cancels:
        clients += ["canceller 1", "canceller 2"]
    return (
        _with_moves(with_clients(longer, clients))
        if Sizes(plan).moves
        else with_clients(longer, clients)
    )


def _with_moves(plan: Plan) -> Plan:
    """The plan with two broker groups, between which queues of these topics move."""
    random = random_of(plan, "moves of ids")
    groups = draw_groups(plan, random, ((1, 1), (3, 1), (1, 3), (3, 3)))
    kinds = ("move ids",) * 4 + ("move ids there and back",) * 3 + ("move ids and cancel",) * 2
    chosen = random.choices(kinds, k=random.choice((4, 7)))
    chosen += random.choices(
        ("strike in a move", "strike in a move", "kill master", "heal", "stop master"),
        k=random.choice((0, 2, 4)),
    )
    steps = [
        Step(round(random.uniform(0.2, plan.duration_s), 6), kind, random.getrandbits(32))
        for kind in chosen
    ]
    # They fill the windows, which would leave little to be cancelled.
    count = 0 if Sizes(plan).cancels else random_of(plan, "payers").choice((2, 3))
    payers = (f"payer {number}" for number in range(1, count + 1))
    return replace(
        with_clients(over_groups(plan, random, groups, steps, ()), payers),
        controllers=max(plan.controllers, random.choice((1, 1, 1, 3))),
        lease_s=plan.lease_s or random.choice((0.3, 1.0)),
    )


@contextmanager
def _small_and_watched(run: Run) -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(moves.small_moves(run))
        for target, name, value in Sizes(run.plan).exchanged():
            stack.enter_context(patch.object(target, name, value))
        for target, name, make in (
            (rules, "complete_settings", _with_dedup),
            (MessageIds, "check", partial(_watched_check, run)),
            (MessageIds, "on_damage", partial(_watched_damage, run)),
            (MessageIds, "_open", partial(_watched_open, run)),
            (Mastership, "maybe_begin", partial(_watched_begin, run)),
            (Replica, "install_state", partial(_watched_install, run)),
            (MessageIds, "lend", partial(_watched_lend, run)),
            (produce_stream, "encode_produce", partial(watched_encode, run)),
        ):
            stack.enter_context(patch.object(target, name, make(getattr(target, name))))
        yield


def _with_dedup(complete: Callable[..., Any]) -> Callable[..., Any]:
    """The controllers take any window and seed."""

    def complete_settings(given: Any) -> Any:
        rest = common_pb2.TopicSettings()
        rest.CopyFrom(given)
        rest.ClearField("dedup")
        settings = complete(rest)
        if given.HasField("dedup"):
            settings.dedup.CopyFrom(given.dedup)
        return settings

    return complete_settings


def _host_of(run: Run, ids: Any) -> BrokerHost | None:
    """The host whose present replica has these indexes."""
    host = run.hosts.get(ids._node.config.node_id)
    return host if host is not None and host.replica is ids._node else None


def _watched_check(run: Run, check: Callable[..., None]) -> Callable[..., None]:
    def watched(self: MessageIds) -> None:
        check(self)
        host = _host_of(run, self)
        if host is None or not self.behind or self._damaged or not self.gaps():
            return
        run.world.seen["ids missing in an index"] += 1
        known = run.shared(SentIds).without
        if not (host.ids.losses or host.wiped or host.number in known):
            run.world.loop.errors.append(
                f"the index of {host.name} lacks {self.gaps()}, and nothing has lost them"
            )

    return watched


def _watched_damage(run: Run, on_damage: Callable[..., None]) -> Callable[..., None]:
    def watched(self: MessageIds, error: CorruptIndex) -> None:
        host = _host_of(run, self)
        if host is not None and not host.ids.losses:
            run.world.loop.errors.append(
                f"the index of {host.name} is damaged, and nothing has damaged it: {error}"
            )
        on_damage(self, error)

    return watched


def _watched_open(run: Run, open_index: Callable[..., None]) -> Callable[..., None]:
    def watched(self: MessageIds, topic_id: int, window: Any) -> None:
        open_index(self, topic_id, window)
        host = _host_of(run, self)
        if host is not None and topic_id not in self._topics:
            run.world.count("index not opened")
            host.ids.losses += 1  # what is applied meanwhile does not reach it

    return watched


def _watched_begin(run: Run, begin: Callable[..., bool]) -> Callable[..., bool]:
    """A master that begins without all its ids steps down at once."""

    def watched(self: Mastership, *arguments: Any) -> bool:
        begun = begin(self, *arguments)
        if begun and self._ids.behind:
            run.world.count("master without all its ids")
            run.world.later(_RESIGNS_S, partial(_check_resigned, run, self, self.proposer))
        return begun

    return watched


def _check_resigned(run: Run, mastership: Mastership, proposer: object) -> None:
    host = _host_of(run, mastership._ids)
    if host is None or mastership.proposer is not proposer or not mastership._ids.behind:
        return
    assert host.process is not None
    if host.process.stopped_until > run.world.now - _RESIGNS_S:  # it slept meanwhile
        run.world.later(_RESIGNS_S, partial(_check_resigned, run, mastership, proposer))
    else:
        run.world.loop.errors.append("a node serves as master, and its index lacks ids")


def _watched_install(run: Run, install: Callable[..., None]) -> Callable[..., None]:
    def watched(self: Replica, state: Any) -> None:
        run.shared(SentIds).without.add(self.config.node_id)
        install(self, state)

    return watched


def _watched_lend(run: Run, lend: Callable[..., Any]) -> Callable[..., Any]:
    async def watched(self: MessageIds, *arguments: Any, **options: Any) -> Any:
        found = await lend(self, *arguments, **options)
        if found == Lacking(0):  # it has not applied them, so it cannot have lost them
            run.world.count("ids not applied on a node that is asked for them")
            run.shared(SentIds).without.add(self._node.config.node_id)  # type: ignore[attr-defined]
        return found

    return watched


add_part(
    Part(
        name="ids",
        help="topics compare message ids, and indexes are lost, damaged and full",
        add=with_ids,
        exchange=_small_and_watched,
    )
)


def with_waiting(plan: Plan) -> Plan:
    """In worlds of ids: most messages wait for long, some are cancelled, and queues move."""
    if "notary 1" not in plan.clients:
        return plan
    if not Sizes(plan).cancels:
        plan = with_clients(plan, ("canceller 1", "canceller 2"))
    return plan if Sizes(plan).moves else _with_moves(plan)


add_part(
    Part(
        name="waiting",
        help="most messages with ids wait, and are cancelled, while their queues move",
        add=with_waiting,
    )
)
