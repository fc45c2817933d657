"""What serves requests with the rights of one client of the cluster: of the gateway itself, or of a
principal that has logged in.

How it works. Everything that reads, stores or looks something up belongs to one client and its
rights: its topics, producers, polls, and what was fetched for consumers. The group service is one
for all: it asks on behalf of whoever calls. What was counted by services that have ended is kept,
so that the gateway's figures never fall.

Not here: which services a request goes to (`server.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from semel.client.session import Session
from semel.gateway import api_versions
from semel.gateway.coordination.group_service import GroupService
from semel.gateway.coordination.transaction_service import TransactionService
from semel.gateway.dispatch import Dispatcher
from semel.gateway.fetching.fetch import HELD_BYTES_MAX, Fetching
from semel.gateway.handlers.group_handlers import GroupHandlers
from semel.gateway.handlers.transaction_handlers import TransactionHandlers
from semel.gateway.metadata import Catalog
from semel.gateway.principals import sasl_handlers
from semel.gateway.producing.produce import Producing
from semel.gateway.record_deletion import RecordDeletion
from semel.gateway.records import RecordCodec
from semel.gateway.topic_admin import TopicAdmin
from semel.gateway.topic_book import TopicBook


class Figures(NamedTuple):
    """What services count."""

    records: int = 0
    bytes: int = 0
    duplicates: int = 0
    lanes: int = 0
    fetched_bytes: int = 0
    held_bytes: int = 0
    readers: int = 0
    sessions: int = 0
    """Sessions of Fetch."""


class Services:
    """See the module's text. Live on the client's I/O thread."""

    def __init__(
        self,
        session: Session,
        codec: RecordCodec,
        groups: GroupService,
        transactions: TransactionService,
        held_bytes_max: Callable[[], int] = lambda: HELD_BYTES_MAX,
    ) -> None:
        """`codec` compresses what consumers get, and `held_bytes_max()` of it are kept."""
        cluster = session.cluster
        topics = TopicBook(cluster)
        self.producing = Producing(cluster, topics)
        self.fetching = Fetching(cluster, topics, codec, held_bytes_max)
        self.dispatcher = Dispatcher(
            api_versions.handlers(),
            sasl_handlers.handlers(),
            self.producing.handlers(),
            self.fetching.handlers(),
            Catalog(cluster, topics).handlers(),
            TopicAdmin(cluster).handlers(),
            RecordDeletion(cluster, topics).handlers(),
            GroupHandlers(groups, transactions).handlers(),
            TransactionHandlers(transactions, groups, topics).handlers(),
        )

    def start(self) -> None:
        self.producing.start()
        self.fetching.start()

    def close(self) -> None:
        """Ends at once; what is on its way may still be stored."""
        self.producing.close()

    @property
    def figures(self) -> Figures:
        numbered, staged = self.producing.numbered, self.producing.staged
        return Figures(
            records=self.producing.records,
            bytes=self.producing.bytes,
            duplicates=numbered.duplicates + staged.duplicates,
            lanes=numbered.lane_count + staged.lane_count,
            fetched_bytes=self.fetching.bytes,
            held_bytes=self.fetching.held_bytes,
            readers=self.fetching.reader_count,
            sessions=len(self.fetching.sessions),
        )


def added(figures: Iterable[Figures]) -> Figures:
    """Returns the sum."""
    return Figures(*map(sum, zip(*figures, strict=True)))


def ended(figures: Figures) -> Figures:
    """Returns what is left of the figures of services that have ended."""
    return figures._replace(lanes=0, held_bytes=0, readers=0, sessions=0)
