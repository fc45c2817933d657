"""Every error of the tier, and who can help: the store, the operator, or nobody.

How it works. `store.py` is the one place where exceptions of `pyarrow.fs` become these. The classes
are leaves of the families of `semel.protos.errors`, so callers that ask for `retriable` or for a
family need not know them. They have no code of their own: none of them crosses a stream as what it
is here. A broker that answers a client from the tier says `Unavailable` or `CorruptBatch`.

Not here: the texts of stores, and what each means (`store_errors.py`).
"""

from __future__ import annotations

from semel.protos.errors import CallerError, RetriableError, StorageError


class TierUnavailable(RetriableError):
    """The store did not answer in time, or said that it is busy. A write may have taken effect."""

    status = "UNAVAILABLE"


class TierDenied(CallerError):
    """The store refuses these credentials: they are unknown, expired, or lack a right."""

    status = "PERMISSION_DENIED"


class TierMisconfigured(CallerError):
    """The URL is malformed, its scheme or an option of it is unknown, or its bucket or folder does
    not exist."""

    status = "INVALID_ARGUMENT"


class ForeignTier(CallerError):
    """The place belongs to another cluster, or to a newer version of Semel."""

    status = "FAILED_PRECONDITION"


class TierFull(StorageError):
    """The store has no room, or a quota is used up; nothing that counts was written."""

    status = "RESOURCE_EXHAUSTED"


class ObjectMissing(StorageError):
    """An object that a manifest names is not there."""

    status = "DATA_LOSS"


class CorruptTier(StorageError):
    """An object is cut short, damaged, or contradicts what names it."""

    status = "DATA_LOSS"
