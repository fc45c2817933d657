"""Topics that compare message ids, with producers that send the same messages again and again.

How it works. A *repeater* speaks the produce protocol itself (`repeaters.py`). A *notary* makes the
topics, and compares at the end what the log says (`tests/checking/message_ids.py`) with what
producers were told, what is in the queues, and what is in the index of each node. Windows,
memory, runs and chunks are so small that all that happens to an index happens all the time. The
index of a node is lost, damaged, or finds no room (`id_disk.py`).

What must hold besides: ids are missing in an index only after something has lost them, and no node
goes on as master while ids are missing in its index.

Not here: transactions of such topics (`bankers.py`); moves and cancels, which the checker does not
follow yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final
from unittest.mock import patch

from semel.broker.dedup import id_index, id_runs, run_copies
from semel.broker.replica import id_indexes
from semel.broker.replica import replica as replica_module
from semel.broker.replica.id_indexes import Lacking
from semel.broker.replica.mastership import Mastership
from semel.broker.replica.message_ids import MessageIds
from semel.broker.replica.replica import Replica
from semel.broker.state.admission import id_admission
from semel.controller.topics import rules
from semel.protos.v1 import common_pb2, controller_pb2
from tests.checking.message_ids import ID_BYTES, IdLog
from tests.checking.raw_log import Fold
from tests.world.clients import ClientHost
from tests.world.groups import BrokerGroup
from tests.world.id_indexes import check_index
from tests.world.nemesis import Nemesis
from tests.world.nodes import BrokerHost
from tests.world.plan import Plan, Step, with_clients, with_steps
from tests.world.registry import Part, add_part, fault, program, random_of
from tests.world.repeaters import TOPICS, SentIds
from tests.world.run import Run

_SEED: Final = b"0123456789abcdef"
_RESIGNS_S: Final = 0.05
"""Time after which a node whose index lacks ids is no master any more."""


class Sizes:
    """The sizes of one world."""

    def __init__(self, plan: Plan) -> None:
        random = random_of(plan, "sizes of ids")
        self.memory_ids = random.choice((4, 10, 30))
        self.runs_per_level = random.choice((2, 3))
        self.look_s = random.choice((0.02, 0.1))
        self.pool = random.choice((12, 40, 150))
        """How many ids there are."""
        self.topics = [
            common_pb2.IdDedup(
                window_bytes=ID_BYTES * random.choice((6, 25, 100)),
                keep_ms=random.choice((0, 0, 300, 1_500)),
                keep_first=random.random() < 0.3,
                seed=_SEED,
            )
            for _ in TOPICS
        ]

    def exchanged(self) -> list[tuple[Any, str, Any]]:
        """Constants of the product that are smaller here."""
        return [
            (id_index, "RUNS_PER_LEVEL", self.runs_per_level),
            (id_index, "LEVEL_IDS", self.memory_ids),
            (id_index, "MERGE_IDS", 8),
            (id_runs, "CHUNK_IDS", 4),
            (id_runs, "PART_PLACES", 3),
            (run_copies, "PIECE_CHUNKS", 2),
            (run_copies, "PIECE_PARTS", 2),
            (id_indexes, "LOOK_S", self.look_s),
            (id_admission, "WINDOW_BYTES_MIN", ID_BYTES),
            (replica_module, "MessageIds", partial(MessageIds, memory_ids=self.memory_ids)),
        ]


class Notary(ClientHost):
    """Makes the topics, and judges at the end."""

    topics = TOPICS

    def __init__(self, run: Run, name: str) -> None:
        super().__init__(run.world, name)
        self._run = run
        self._sizes = Sizes(run.plan)

    async def work(self, client: Any) -> None:
        for topic, dedup in zip(TOPICS, self._sizes.topics, strict=True):
            request = controller_pb2.CreateTopicRequest(
                name=topic,
                queues=2,
                settings=common_pb2.TopicSettings(dedup=dedup),
                if_not_exists=True,
                groups=[1],
            )
            await client._session.cluster.controller("CreateTopic", request)
        self.done = True

    def verdict(self, fold: Fold) -> str:
        known = self._run.shared(SentIds)
        for group in self._run.groups:
            log = IdLog(known.sent).read(group.invariants.committed)
            if group.group_id == 1:
                log.judge(known.answers)
                if missing := known.committed - log.published:
                    log.problems.append(f"{missing} are committed, and not published")
            problems = [*log.problems, *self._misplaced(log, fold), *self._indexes(group, log)]
            problems += self._forgotten(group, log)
            if problems:
                return f"message ids: {problems[0]}"
            seen = self.world.seen
            seen["id stored"] += sum(len(topic.arrivals) for topic in log.topics.values())
            seen["id evicted"] += log.evicted
            seen["batch rewritten"] += log.rewritten
            seen["batch published where it lay"] += log.by_reference
            seen["duplicate dropped"] += log.duplicates
            seen["conflict refused"] += log.conflicts
        return ""

    def _misplaced(self, log: IdLog, fold: Fold) -> Iterator[str]:
        """What queues hold is what the log stored, once."""
        stored = Counter(
            (name.queue, name.producer_id, name.epoch, name.session, sequence)
            for name, batch in log.batches.items()
            for sequence in batch.sequences
        )
        held = Counter(
            (row.queue, row.producer_id, row.epoch, row.session, row.sequence)
            for row in fold.rows
            if row.queue[0] in log.topics
        )
        if stored != held:
            yield f"queues lack {stored - held}, and have {held - stored} too much"

    def _indexes(self, group: BrokerGroup, log: IdLog) -> Iterator[str]:
        for host in group.members():
            for topic_id, topic in log.topics.items():
                assert host.replica is not None
                problem = check_index(host.replica, topic_id, topic)
                if problem:
                    yield f"{host.name}, topic {topic_id}: {problem}"

    def _forgotten(self, group: BrokerGroup, log: IdLog) -> Iterator[str]:
        """Ids may be forgotten before their time if all members have lost some."""
        kept = [host.name for host in group.members() if not self._has_lost(host)]
        for topic_id, topic in log.topics.items():
            for found in topic.forgotten:
                self.world.count("window begins anew")
                if kept:
                    yield f"topic {topic_id} forgets too much: {found}, and {kept} lost nothing"

    def _has_lost(self, host: BrokerHost) -> bool:
        if host.number not in self._run.group_of(host).founders:
            return True  # it may have come later
        without = self._run.shared(SentIds).without
        return bool(host.ids.losses or host.wiped or host.number in without)


@program("notary", host="n")
def _notary(run: Run, host: str) -> Notary:
    return Notary(run, host)


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
    return with_clients(longer, ("notary 1", *repeaters))


@contextmanager
def _small_and_watched(run: Run) -> Iterator[None]:
    with ExitStack() as stack:
        for target, name, value in Sizes(run.plan).exchanged():
            stack.enter_context(patch.object(target, name, value))
        for target, name, make in (
            (rules, "complete_settings", _with_dedup),
            (MessageIds, "check", partial(_watched_check, run)),
            (MessageIds, "_open", partial(_watched_open, run)),
            (Mastership, "maybe_begin", partial(_watched_begin, run)),
            (Replica, "install_state", partial(_watched_install, run)),
            (MessageIds, "lend", partial(_watched_lend, run)),
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


def pool_of(plan: Plan) -> int:
    """How many ids there are in a world."""
    return Sizes(plan).pool
