"""The Python SDK of Semel, synchronous (`connect`) and for asyncio (`connect_async`).

See `docs/client.md`. Errors live in `semel.protos.errors` and are re-exported here.
"""

from semel.client import _fork as _fork  # first: before gRPC is imported
from semel.client.admin.audit import AuditEvent, AuditPage, UnreadLog
from semel.client.admin.delay_history import DelayRelease
from semel.client.admin.delays import DelayBucket, DelayedMessage, DelayStats
from semel.client.admin.found_message import CancelResult, FoundMessage
from semel.client.admin.given_up import UnreadableBatch
from semel.client.admin.inspection import Inspection
from semel.client.admin.nodes import DrainResult, MemberProgress, MembershipResult
from semel.client.admin.quotas import QuotaInfo
from semel.client.admin.resets import OffsetReset, Shift
from semel.client.admin.restore import RestorePlan, RestoreResult
from semel.client.admin.rights import AccessDecision, AccessRules, PasswordUser, WhoAmI
from semel.client.admin.rolling import RestartProgress, RestartTarget, RollingResult
from semel.client.admin.settings import SettingChange, SettingInfo
from semel.client.admin.stored_message import StoredMessage
from semel.client.admin.tier_restore import TierRestorePlan, TierRestoreProgress
from semel.client.admin.topic_settings import Compaction, IdDedup
from semel.client.admin.upgrade_check import UpgradeCheck
from semel.client.admin.verify import VerifyProgress
from semel.client.api.aio import AsyncClient, AsyncProducer
from semel.client.api.aio_admin import AsyncAdmin
from semel.client.api.aio_reading import AsyncConsumer, AsyncReader
from semel.client.api.aio_table import AsyncTable
from semel.client.api.aio_transactions import (
    AsyncProducerTransaction,
    AsyncStage,
    AsyncTransactions,
)
from semel.client.api.connect import connect, connect_async
from semel.client.api.sync import Client, Producer
from semel.client.api.sync_admin import Admin
from semel.client.api.sync_reading import Consumer, Reader
from semel.client.api.sync_table import Table
from semel.client.api.sync_transactions import ProducerTransaction, Stage, Transactions
from semel.client.config import (
    ClientConfig,
    ProducerConfig,
    ReaderConfig,
    RetryPolicy,
)
from semel.client.consumer.consumer_config import ConsumerConfig
from semel.client.consumer.sql_offsets import SqlOffsets
from semel.client.core.due_in_second import DueInSecond
from semel.client.core.letters import Origin
from semel.client.dead_letters.listing import DeadLetter, LetterFilter
from semel.client.dead_letters.redrive import RedriveProgress, RedriveResult
from semel.client.login import Login
from semel.client.message import ARROW_SCHEMA, Message, RecordMetadata
from semel.client.producer.futures import BulkFuture, BulkSummary, SendFuture
from semel.client.producer.topic import ProducerStats
from semel.client.transactions.commit import Committed
from semel.client.transactions.staging import StageReceipt
from semel.client.transactions.transaction_info import (
    TransactionInfo,
    TransactionPart,
    TransactionProgress,
)
from semel.protos.errors import SemelError
from semel.protos.security.credentials import Security

__all__ = [
    "ARROW_SCHEMA",
    "AccessDecision",
    "AccessRules",
    "Admin",
    "AsyncAdmin",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncProducer",
    "AsyncProducerTransaction",
    "AsyncReader",
    "AsyncStage",
    "AsyncTable",
    "AsyncTransactions",
    "AuditEvent",
    "AuditPage",
    "BulkFuture",
    "BulkSummary",
    "CancelResult",
    "Client",
    "ClientConfig",
    "Committed",
    "Compaction",
    "Consumer",
    "ConsumerConfig",
    "DeadLetter",
    "DelayBucket",
    "DelayRelease",
    "DelayStats",
    "DelayedMessage",
    "DrainResult",
    "DueInSecond",
    "FoundMessage",
    "IdDedup",
    "Inspection",
    "LetterFilter",
    "Login",
    "MemberProgress",
    "MembershipResult",
    "Message",
    "OffsetReset",
    "Origin",
    "PasswordUser",
    "Producer",
    "ProducerConfig",
    "ProducerStats",
    "ProducerTransaction",
    "QuotaInfo",
    "Reader",
    "ReaderConfig",
    "RecordMetadata",
    "RedriveProgress",
    "RedriveResult",
    "RestartProgress",
    "RestartTarget",
    "RestorePlan",
    "RestoreResult",
    "RetryPolicy",
    "RollingResult",
    "Security",
    "SemelError",
    "SendFuture",
    "SettingChange",
    "SettingInfo",
    "Shift",
    "SqlOffsets",
    "Stage",
    "StageReceipt",
    "StoredMessage",
    "Table",
    "TierRestorePlan",
    "TierRestoreProgress",
    "TransactionInfo",
    "TransactionPart",
    "TransactionProgress",
    "Transactions",
    "UnreadLog",
    "UnreadableBatch",
    "UpgradeCheck",
    "VerifyProgress",
    "WhoAmI",
    "connect",
    "connect_async",
]
