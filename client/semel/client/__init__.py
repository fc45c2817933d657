"""The Python SDK of Semel, synchronous (`connect`) and for asyncio (`connect_async`).

See `docs/client.md`. Errors live in `semel.protos.errors` and are re-exported here.
"""

from semel.client import _fork as _fork  # first: before gRPC is imported
from semel.client.aio import AsyncClient, AsyncProducer, connect_async
from semel.client.aio_admin import AsyncAdmin
from semel.client.aio_reading import AsyncConsumer, AsyncReader
from semel.client.config import (
    ClientConfig,
    ConsumerConfig,
    ProducerConfig,
    ReaderConfig,
    RetryPolicy,
)
from semel.client.core.letters import Origin
from semel.client.futures import BulkFuture, BulkSummary, SendFuture
from semel.client.inspection import Inspection
from semel.client.members import DrainResult, MemberProgress, MembershipResult
from semel.client.message import ARROW_SCHEMA, Message, RecordMetadata
from semel.client.producer_topic import ProducerStats
from semel.client.redriving import DeadLetter, LetterFilter, RedriveProgress, RedriveResult
from semel.client.resets import OffsetReset, Shift
from semel.client.restoring import RestorePlan, RestoreResult
from semel.client.sql_offsets import SqlOffsets
from semel.client.staging import StageReceipt
from semel.client.sync import Client, Producer, connect
from semel.client.sync_admin import Admin
from semel.client.sync_reading import Consumer, Reader
from semel.client.transaction_aio import (
    AsyncProducerTransaction,
    AsyncStage,
    AsyncTransactions,
)
from semel.client.transaction_api import ProducerTransaction, Stage, Transactions
from semel.client.transaction_core import Committed
from semel.client.transaction_model import TransactionInfo, TransactionPart
from semel.client.verify import VerifyProgress
from semel.protos.errors import SemelError

__all__ = [
    "ARROW_SCHEMA",
    "Admin",
    "AsyncAdmin",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncProducer",
    "AsyncProducerTransaction",
    "AsyncReader",
    "AsyncStage",
    "AsyncTransactions",
    "BulkFuture",
    "BulkSummary",
    "Client",
    "ClientConfig",
    "Committed",
    "Consumer",
    "ConsumerConfig",
    "DeadLetter",
    "DrainResult",
    "Inspection",
    "LetterFilter",
    "MemberProgress",
    "MembershipResult",
    "Message",
    "OffsetReset",
    "Origin",
    "Producer",
    "ProducerConfig",
    "ProducerStats",
    "ProducerTransaction",
    "Reader",
    "ReaderConfig",
    "RecordMetadata",
    "RedriveProgress",
    "RedriveResult",
    "RestorePlan",
    "RestoreResult",
    "RetryPolicy",
    "SemelError",
    "SendFuture",
    "Shift",
    "SqlOffsets",
    "Stage",
    "StageReceipt",
    "TransactionInfo",
    "TransactionPart",
    "Transactions",
    "VerifyProgress",
    "connect",
    "connect_async",
]
