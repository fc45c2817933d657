"""What transactions have staged of consumer groups' progress, by the log of one broker group.

How it works. A model of stagers and pins follows the committed entries, one record after the other:
which stagers are open, which batches and commits each has, which are pinned. It reads the records
alone, as `consumption.py` does, which judges the commits by the locks. Each node's stagers are
compared with it wherever the node has applied something.

Invariants
1. A commit is staged under the current token of a held lock only, and it is in its stager until
   that ends: a publication stores it, nothing else does.
2. A publication is of a pin of exactly that attempt, which was neither dropped nor replaced.
3. Progress of a deleted group, and on a queue that has left, is in no stager.

Not here: what a publication makes of progress (`consumption.py`), the batches' order and offsets
(`tests/checking/staged.py`), limits on what is due in a second, which may refuse a pin as well: no
program stages commits beside delayed messages.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from semel.broker.state.apply import staged_commits
from semel.protos.batch import BatchHeader
from semel.protos.ids import QueueKey
from semel.protos.queue_refs import queue_key_of
from semel.protos.staging import DIGEST_MASK, batch_digest
from semel.protos.v1 import transaction_records_pb2

_REPEAT_LEVEL: Final = 6
"""From here on an attempt may pin what the attempt before it has pinned."""

Place = tuple[str, QueueKey]
"""Group and queue."""


class StagedError(AssertionError):
    """A transaction is published that cannot be."""


class StagedCommit(NamedTuple):
    """Progress that a publication is to store."""

    token: int
    offset: int
    version: int
    may_lower: bool

    @classmethod
    def of(cls, commit: staged_commits.StagedCommit) -> StagedCommit:
        """What a node has staged."""
        return cls(commit.token, commit.offset, commit.metadata_version, commit.may_lower)


Seen = tuple[bool, tuple[tuple[Place, StagedCommit], ...]] | None
"""Whether a stager is pinned, and its commits; None: there is none with commits."""


@dataclass(slots=True)
class _Batches:
    """What a stager has for a queue."""

    session: int
    last: int = -1
    count: int = 0
    messages: int = 0
    digest: int = 0


@dataclass(slots=True)
class _Stager:
    transaction_id: str
    epoch: int
    ttl_us: int
    expires_us: int = 0
    pinned: bool = False
    session: int = 0
    queues: dict[QueueKey, _Batches] = field(default_factory=dict)
    commits: dict[Place, StagedCommit] = field(default_factory=dict)

    def is_of(self, transaction_id: str, epoch: int) -> bool:
        return (self.transaction_id, self.epoch) == (transaction_id, epoch)


@dataclass(frozen=True, slots=True)
class _Pin:
    epoch: int
    attempt: int
    coordinator: int
    winners: tuple[int, ...]


@dataclass(slots=True)
class Queues:
    """What the model must know of the queues."""

    is_here: Callable[[QueueKey], bool]
    is_frozen: Callable[[QueueKey], bool]
    """It is about to move."""
    is_split: Callable[[QueueKey], bool]


class StagedProgress:
    """See the module's text."""

    def __init__(self, queues: Queues) -> None:
        self.level = 0
        """The feature level of the broker group."""
        self._queues = queues
        self._stagers: dict[int, _Stager] = {}
        self._pins: dict[str, _Pin] = {}

    def seen(self, numbers: Iterable[int]) -> dict[int, Seen]:
        """How stagers are now."""
        found: dict[int, Seen] = {}
        for number in numbers:
            stager = self._stagers.get(number)
            kept = None if stager is None else tuple(sorted(stager.commits.items()))
            found[number] = (stager.pinned, kept) if stager is not None and kept else None
        return found

    def places(
        self, ending: transaction_records_pb2.DropPin | transaction_records_pb2.DropStagers
    ) -> set[Place]:
        """Where the stagers have staged progress that a record ends, or tries to."""
        numbers: Iterable[int]
        if isinstance(ending, transaction_records_pb2.DropStagers):
            numbers = ending.stager_ids
        else:
            pin = self._pins.get(ending.transaction_id)
            numbers = () if pin is None else pin.winners
        return {place for one in numbers for place in self._commits_of(one)}

    def _commits_of(self, number: int) -> dict[Place, StagedCommit]:
        stager = self._stagers.get(number)
        return {} if stager is None else stager.commits

    # --- what is committed, in the order of the log. Results are the stagers that may have changed.

    def on_batch(self, header: BatchHeader, now_us: int) -> None:
        """A batch of a stager; one that the brokers refuse changes nothing."""
        stager = self._stagers.get(header.producer_id)
        batches = None if stager is None else stager.queues.get(header.queue_key)
        if (
            stager is None
            or batches is None
            or stager.pinned
            or not self._queues.is_here(header.queue_key)
            or self._queues.is_split(header.queue_key)
            or header.session != batches.session
            or header.previous_sequence != batches.last
            or header.base_sequence <= batches.last
        ):
            return
        batches.last = header.last_sequence
        batches.count += 1
        batches.messages += header.count
        batches.digest = batches.digest + batch_digest(header) & DIGEST_MASK
        stager.expires_us = now_us + stager.ttl_us

    def on_open(self, record: transaction_records_pb2.OpenStager, now_us: int) -> None:
        """A stager is opened, perhaps again."""
        keys = [queue_key_of(ref) for ref in record.queues]
        if any(not self._queues.is_here(key) or self._queues.is_split(key) for key in keys):
            return
        stager = self._stagers.get(record.stager_id)
        if stager is None:
            stager = _Stager(record.transaction_id, record.epoch, record.ttl_ms * 1000)
            self._stagers[record.stager_id] = stager
        elif (
            stager.pinned
            or not stager.is_of(record.transaction_id, record.epoch)
            or (not keys and record.session < stager.session)
            or any(
                key in stager.queues and record.session < stager.queues[key].session for key in keys
            )
        ):
            return
        stager.expires_us = now_us + stager.ttl_us
        stager.session = max(stager.session, record.session)
        for key in keys:
            stager.queues.setdefault(key, _Batches(0)).session = record.session

    def on_commits(
        self,
        record: transaction_records_pb2.StageCommits,
        now_us: int,
        is_granted: Callable[[Place, transaction_records_pb2.StagedCommit], bool],
    ) -> list[int]:
        """Commits are staged; `is_granted` says whether locks and progress allow one."""
        stager = self._stagers.get(record.stager_id)
        if (
            stager is None
            or stager.pinned
            or not stager.is_of(record.transaction_id, record.epoch)
            or (record.HasField("session") and record.session < stager.session)
        ):
            return []
        for one in record.commits:
            place = record.group, queue_key_of(one.queue)
            if one.offset < 0 or not is_granted(place, one):
                continue
            commit = StagedCommit(one.token, one.offset, one.metadata_version, one.may_lower)
            present = stager.commits.get(place)
            if present is None or (present.token, present.version) <= (
                commit.token,
                commit.version,
            ):
                stager.commits[place] = commit
        stager.expires_us = now_us + stager.ttl_us
        return [record.stager_id]

    def on_pin(self, record: transaction_records_pb2.PinTransaction) -> Collection[int]:
        """Winners are pinned, and all other stagers of the transaction end; or nothing changes."""
        present = self._pins.get(record.transaction_id)
        if present is not None and (
            present.coordinator != record.coordinator or present.attempt >= record.attempt
        ):
            return ()
        free = present.winners if present is not None and self.level >= _REPEAT_LEVEL else ()
        winners = tuple(winner.stager_id for winner in record.winners)
        if len(set(winners)) != len(winners) or not all(
            self._is_as_claimed(record, winner, free) for winner in record.winners
        ):
            return ()
        others = {
            number
            for number, stager in self._stagers.items()
            if stager.transaction_id == record.transaction_id
            and stager.epoch <= record.epoch
            and not stager.pinned
        } | {*free}
        for number in others.difference(winners):
            del self._stagers[number]
        for number in winners:
            self._stagers[number].pinned = True
        self._pins[record.transaction_id] = _Pin(
            record.epoch, record.attempt, record.coordinator, winners
        )
        return others.union(winners)

    def _is_as_claimed(
        self,
        record: transaction_records_pb2.PinTransaction,
        winner: transaction_records_pb2.Winner,
        free: Collection[int],
    ) -> bool:
        stager = self._stagers.get(winner.stager_id)
        if (
            stager is None
            or (stager.pinned and winner.stager_id not in free)
            or not stager.is_of(record.transaction_id, record.epoch)
            or len(stager.commits) != winner.commits
        ):
            return False
        claimed = {
            queue_key_of(part.queue): (part.batches, part.messages, part.digest)
            for part in winner.parts
        }
        held = {
            key: (one.count, one.messages, one.digest)
            for key, one in stager.queues.items()
            if one.count
        }
        queues = self._queues
        return (
            len(claimed) == len(winner.parts)
            and claimed == held
            and all(
                queues.is_here(key) and not queues.is_frozen(key) and not queues.is_split(key)
                for key in held
            )
            and all(queues.is_here(key) and not queues.is_frozen(key) for _, key in stager.commits)
        )

    def on_drop_pin(self, record: transaction_records_pb2.DropPin) -> Sequence[int]:
        """A pin ends without its publication."""
        pin = self._pins.get(record.transaction_id)
        if pin is None or pin.attempt != record.attempt:
            return ()
        return self._end(record.transaction_id)

    def on_drop_stagers(
        self, record: transaction_records_pb2.DropStagers, now_us: int
    ) -> Sequence[int]:
        """Stagers are given up, or their time is over."""
        ended = [
            number
            for number in record.stager_ids
            if (stager := self._stagers.get(number)) is not None
            and not stager.pinned
            and not (record.expired_only and stager.expires_us > now_us)
        ]
        for number in ended:
            del self._stagers[number]
        return ended

    def on_publish(
        self, record: transaction_records_pb2.PublishTransaction
    ) -> list[tuple[int, dict[Place, StagedCommit]]]:
        """Returns the winners in their order, each with its commits. Raises StagedError."""
        pin = self._pins.get(record.transaction_id)
        if pin is None or (pin.attempt, pin.epoch) != (record.attempt, record.epoch):
            raise StagedError(
                f"attempt {record.attempt} at epoch {record.epoch} of {record.transaction_id} is"
                f" published, pinned is {pin}"
            )
        found = [(number, dict(self._stagers[number].commits)) for number in pin.winners]
        self._end(record.transaction_id)
        return found

    def _end(self, transaction_id: str) -> Sequence[int]:
        winners = self._pins.pop(transaction_id).winners
        for number in winners:
            del self._stagers[number]
        return winners

    def on_queue_gone(self, key: QueueKey) -> list[int]:
        """A queue is deleted, or has moved to another broker group."""
        for stager in self._stagers.values():
            stager.queues.pop(key, None)
        return self._forget(lambda place: place[1] == key)

    def on_group_deleted(self, group: str, only: Collection[QueueKey]) -> list[int]:
        """A consumer group is deleted, on `only` these queues if any are named."""
        return self._forget(lambda place: place[0] == group and (not only or place[1] in only))

    def is_pinned(self, place: Place) -> bool:
        """Whether progress there is about to be published."""
        return any(each.pinned and place in each.commits for each in self._stagers.values())

    def on_place_dropped(self, place: Place) -> list[int]:
        """Somebody else reads on there."""
        return self._forget(lambda other: other == place)

    def _forget(self, ends: Callable[[Place], bool]) -> list[int]:
        changed = []
        for number, stager in self._stagers.items():
            gone = [place for place in stager.commits if ends(place)]
            for place in gone:
                del stager.commits[place]
            if gone:
                changed.append(number)
        return changed
