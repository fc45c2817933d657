"""All that a broker node knows and counts of quotas, for its streams and calls.

How it works. One object for each node. It gets the quotas with the rules (`take`), and streams ask
it for what they wait for. Who calls is known from the check of rules; without one everybody is one
principal without a name.

Not here: the waits themselves (`write_pace.py`, `read_pace.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from semel.broker.quotas.open_producers import OpenProducers
from semel.broker.quotas.topic_amounts import TopicAmounts
from semel.broker.quotas.turns import Turns
from semel.broker.replica.replica import Replica
from semel.protos.batch import BatchHeader
from semel.protos.ids import QueueKey, TopicId
from semel.protos.security.enforcement import CALLER
from semel.protos.security.meters import FREE, Meters, Rates


class BrokerQuotas:
    """The quotas of one broker node."""

    def __init__(self, replica: Replica, clock_s: Callable[[], float]) -> None:
        """`clock_s` is a monotonic clock."""
        self._replica = replica
        self.meters = Meters(clock_s)
        self.producers = OpenProducers(self.meters)
        self.amounts = TopicAmounts(
            self.meters, lambda: replica.state, self.topic_of, self._is_stored
        )
        self.write_turns = Turns(self._load)
        self.read_turns = Turns()
        self.held_bytes = 0
        """Bytes of all batches that wait for quotas of their topics."""
        self.held_bytes_max = replica.config.pending_bytes_max

    def topic_of(self, key: QueueKey) -> str | None:
        """The name of a queue's topic; None if the queue is not here."""
        queue = self._replica.state.queues.get(key)
        return None if queue is None else queue.topic

    def _load(self) -> int:
        proposer = self._replica.proposer
        return 0 if proposer is None else proposer.pending_bytes + proposer.unapplied_bytes

    def _is_stored(self, header: BatchHeader) -> bool:
        proposer = self._replica.proposer
        return proposer is not None and proposer.is_stored(header)


class StreamRates:
    """What limits the principal and the topics of one stream."""

    def __init__(self, quotas: BrokerQuotas, principal: str) -> None:
        """`principal` is "" for everybody without a name."""
        self._quotas = quotas
        self._principal = principal
        self._version = -1
        self.own: Rates = FREE
        """Those of the principal."""
        self._topics: dict[TopicId, Rates] = {}

    def renew(self) -> bool:
        """Looks all up again if other limits apply by now; whether they do."""
        meters = self._quotas.meters
        if self._version == meters.version:
            return False
        self._topics.clear()
        self.own = meters.rates_of_principal(self._principal)
        self._version = meters.version
        return True

    def of_topic(self, key: QueueKey) -> Rates:
        """Those of a queue's topic, as of the last `renew`; none for a queue that is not here: what
        is sent to it is refused, and must not use up what others of the topic may send."""
        name = self._quotas.topic_of(key)
        if name is None:
            return FREE
        found = self._topics.get(key.topic_id)
        if found is None:
            found = self._topics[key.topic_id] = self._quotas.meters.rates_of_topic(name)
        return found


def calling_principal() -> str:
    """Returns whose quotas the running call uses: `user:NAME`, a node's own name, or "" where
    nobody proves who they are."""
    caller = CALLER.get()
    return "" if caller is None else caller.principal
