"""The metadata store: the seam and its implementations."""

from semel.controller.store.base import (
    NOTHING_CHANGED,
    ControllerAddress,
    Mastership,
    MetadataStore,
    StoreFailed,
    Transaction,
    VersionConflict,
    Versioned,
)
from semel.controller.store.memory import MemoryStore
from semel.controller.store.sqlite import SqliteStore

__all__ = [
    "NOTHING_CHANGED",
    "ControllerAddress",
    "Mastership",
    "MemoryStore",
    "MetadataStore",
    "SqliteStore",
    "StoreFailed",
    "Transaction",
    "VersionConflict",
    "Versioned",
]
