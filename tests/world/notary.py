"""Makes the topics that compare message ids, and judges at the end: what the log says must agree
with what producers and cancellers were told, what is in the queues, and what each node's index has.

Not here: what the log says (`tests/checking/message_ids.py`).
"""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Iterable, Iterator
from typing import Any

from semel.protos.v1 import common_pb2, controller_pb2
from tests.checking.cancel_answers import Committed, judge_cancels
from tests.checking.client_ids import judge_scattered, judge_sent
from tests.checking.id_topics import BatchName, homes_of
from tests.checking.message_ids import IdLog, judge_answers, judge_moves
from tests.checking.published_ids import TransactionIdLog, staged_messages
from tests.checking.raw_log import Fold
from tests.world.cancellers import CancelAnswers
from tests.world.clients import ClientHost, Follower
from tests.world.groups import BrokerGroup
from tests.world.id_indexes import check_index
from tests.world.id_sizes import TOPICS, Sizes
from tests.world.nodes import BrokerHost
from tests.world.payers import Payments
from tests.world.registry import program
from tests.world.repeaters import SentIds
from tests.world.run import Run


class Notary(ClientHost):
    """Makes the topics, and judges at the end."""

    topics = TOPICS

    def __init__(self, run: Run, name: str) -> None:
        super().__init__(run.world, name)
        self._run = run
        self._sizes = Sizes(run.plan)

    async def work(self, client: Any) -> None:
        sizes = self._sizes
        for topic, dedup in zip(TOPICS, sizes.topics, strict=True):
            settings = common_pb2.TopicSettings(dedup=dedup)
            if sizes.retention_bytes:
                settings.retention_bytes = sizes.retention_bytes
            request = controller_pb2.CreateTopicRequest(
                name=topic,
                queues=sizes.queues,
                settings=settings,
                if_not_exists=True,
                groups=sizes.groups,
            )
            await client._session.cluster.controller("CreateTopic", request)
        self.done = True

    def verdict(self, fold: Fold) -> str:
        known = self._run.shared(SentIds)
        frames = {int(group.group_id): group.invariants.committed for group in self._run.groups}
        staged = {each for some in frames.values() for each in staged_messages(some.values())}
        logs = {number: TransactionIdLog(number, known.sent, staged) for number in frames}
        for number, log in logs.items():
            log.read(frames[number])
        problems = [problem for log in logs.values() for problem in log.problems]
        published = {each for log in logs.values() for each in log.published}
        if missing := known.committed - published:
            problems.append(f"{missing} are committed, and not published")
        problems += judge_answers(known.answers, logs.values())
        problems += judge_moves(logs)
        committed = {
            int(group.group_id): Committed(logs[group.group_id], group.invariants.committed_s)
            for group in self._run.groups
        }
        answers = self._run.shared(CancelAnswers).answers
        problems += judge_cancels(answers, list(committed.values()), fold.rows)
        payments = self._run.shared(Payments)
        problems += judge_scattered(committed, payments.message_ids)
        problems += judge_sent(payments.answers, logs.values())
        problems += self._misplaced(logs.values(), fold)
        for group in self._run.groups:
            problems += self._indexes(group, logs[group.group_id])
            problems += self._forgotten(group, logs[group.group_id])
        seen = self.world.seen
        for log in logs.values():
            seen["id stored"] += sum(len(topic.arrivals) for topic in log.topics.values())
            seen["id evicted"] += log.evicted
            seen["batch rewritten"] += log.rewritten
            seen["batch published where it lay"] += log.by_reference
            seen["duplicate dropped"] += log.duplicates
            seen["conflict refused"] += log.conflicts
            seen["id used again after a cancel"] += log.used_again
            seen["id moved"] += sum(len(each.ids) for each in log.moves.taken)
        return f"message ids: {problems[0]}" if problems else ""

    def _misplaced(self, logs: Iterable[IdLog], fold: Fold) -> Iterator[str]:
        """What queues hold is what the logs stored and did not cancel, once."""
        logs = list(logs)
        handed = ChainMap(*(log.handed for log in logs))
        # A message may be stored in one group's log, and be cancelled in that of another, to which
        # its queue has moved.
        cancelled = set[tuple[BatchName, int]]().union(*(log.cancelled for log in logs))
        sent = (
            (name.queue, name.producer_id, name.epoch, name.session, sequence)
            for log in logs
            for name, batch in log.batches.items()
            for sequence in batch.sequences
            if (name, sequence) not in cancelled
        )
        stored = Counter((homes_of(name, handed)[-1], *name[1:]) for name in sent)
        topics = {topic_id for log in logs for topic_id in log.all_windows}
        held = Counter(
            (row.queue, row.producer_id, row.epoch, row.session, row.sequence)
            for row in fold.rows
            if row.queue[0] in topics
        )
        if stored != held:
            yield f"queues lack {stored - held}, and have {held - stored} too much"

    def _indexes(self, group: BrokerGroup, log: IdLog) -> Iterator[str]:
        for host in group.members():
            assert host.replica is not None
            if host.replica.state.id_windows.topics.keys() != log.topics.keys():
                yield f"{host.name} compares ids of other topics than {log.topics.keys()}"
                continue
            for topic_id, topic in log.topics.items():
                damaged = host.ids.losses > 0
                problem = check_index(host.replica, topic_id, topic, damaged=damaged)
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


class Browser(Follower):
    """Reads one of the topics, in another life the other one."""

    choices = TOPICS


@program("browser", host="br")
def _browser(run: Run, host: str) -> Browser:
    return Browser(run.world, host)
