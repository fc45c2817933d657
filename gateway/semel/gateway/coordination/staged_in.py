"""A transaction with which offsets of a consumer group are stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from semel.gateway.transactions.numbers import stager_id_of
from semel.protos.ids import QueueKey
from semel.protos.v1 import transaction_records_pb2


def _always() -> bool:
    return True


class StagedIn(NamedTuple):
    """The open transaction of a transactional id, and whoever commits with it."""

    transaction_id: str
    epoch: int
    timeout_ms: int
    """The transaction's, as far as it is known."""
    ttl_ms: int
    """How long the offsets live: at least as long as the transaction may last, for nobody would
    miss them in its commit."""
    may_stage: Callable[[], bool] = _always
    """Whether that one is still in the group. Asked on the I/O thread, under each token that is
    used: a reader who comes later fetches under a higher one."""

    def opening(self, group_id: str, queue: QueueKey) -> transaction_records_pb2.OpenStager:
        """Returns what makes the stager of a group's progress known to the queue's brokers."""
        return transaction_records_pb2.OpenStager(
            transaction_id=self.transaction_id,
            epoch=self.epoch,
            stager_id=stager_id_of(self.transaction_id, self.epoch, queue, group_id),
            writer=self.timeout_ms,
            ttl_ms=self.ttl_ms,
        )
