"""The quotas of one broker node without the node: what its streams and calls ask.

The clock is the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from semel.broker.quotas.open_producers import OpenProducers
from semel.broker.quotas.turns import Turns
from semel.protos.ids import QueueKey, TopicId
from semel.protos.security.meters import Meters
from semel.protos.security.quotas import QuotaKind, changed_quotas
from semel.protos.security.rights_record import changed
from semel.protos.v1.controller_pb2 import ChangeQuotasRequest, ChangeRightsRequest
from semel.protos.v1.metadata_pb2 import PrincipalGroup, Quota, RightsRecord


class Clock:
    """A clock that moves when it is told to; call it for the time in seconds."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class QuotaNode:
    """Takes the place of `BrokerQuotas` for what limits streams."""

    def __init__(self, clock_s: Callable[[], float], topics: Mapping[TopicId, str]) -> None:
        """`topics` are names by topic id."""
        self.meters = Meters(clock_s)
        self.producers = OpenProducers(self.meters)
        self.write_turns, self.read_turns = Turns(), Turns()
        self.held_bytes, self.held_bytes_max = 0, 1 << 30
        self._topics = topics
        self._record = RightsRecord()

    def topic_of(self, key: QueueKey) -> str | None:
        return self._topics.get(key.topic_id)

    def set(self, subject: str, limits: Mapping[QuotaKind, int]) -> None:
        """Sets quotas, which are in force at once."""
        wanted = [
            Quota(subject=subject, kind=kind.number, limit=limit)  # type: ignore[arg-type]
            for kind, limit in limits.items()
        ]
        self._take(changed_quotas(self._record, ChangeQuotasRequest(set=wanted)))

    def remove(self, subject: str) -> None:
        """Removes all quotas of a subject."""
        gone = [Quota(subject=subject)]
        self._take(changed_quotas(self._record, ChangeQuotasRequest(remove=gone)))

    def join(self, group: str, users: Sequence[str]) -> None:
        """`users` (`user:NAME`) are members of a group of principals."""
        members = [PrincipalGroup(name=group, members=users)]
        self._take(changed(self._record, ChangeRightsRequest(add_members=members)))

    def _take(self, record: RightsRecord) -> None:
        self._record = record
        self.meters.take(record)
