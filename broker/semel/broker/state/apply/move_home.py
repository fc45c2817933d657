"""The parts of the replicated state that the steps of moves and mirrors change."""

from __future__ import annotations

from typing import Protocol

from semel.broker.state.apply.delays import Delays
from semel.broker.state.apply.id_windows import IdWindows
from semel.broker.state.apply.locks import ConsumerGroups
from semel.broker.state.apply.producers import SequenceTable
from semel.broker.state.apply.queue_table import QueueTable
from semel.broker.state.apply.transactions import Transactions
from semel.protos.ids import Index


class Home(Protocol):
    """The parts of the replicated state that a step needs."""

    queues: QueueTable
    producers: SequenceTable
    groups: ConsumerGroups
    transactions: Transactions
    delays: Delays
    id_windows: IdWindows
    feature_level: int
    applied_index: Index
    log_time_us: int
