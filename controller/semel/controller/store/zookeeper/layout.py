"""The paths and bytes that the store writes into ZooKeeper. Pure.

Format. Below the chroot:
    head                      the newest revision, and the transactions that led to it
    entries/=KEY              one node a key; KEY is percent-quoted, `=` keeps it from being empty
    members/ID                HOST:PORT of a controller that was ever part of the group
    election/ID-NONCE-NNN     ephemeral: a live controller; the lowest NNN is master

`head` and entries begin with 12 bytes, little-endian: the revision that wrote them (8) and the
CRC-32C (4) of the key, a zero byte, the revision and the bytes that follow; the key of `head` is
empty. In an entry, the value follows. In `head`, one JSON object follows:
    format       1
    cluster_id   the cluster that the store was made for; empty when none was named
    revision     the newest revision
    after        `recent` holds all transactions with a higher revision than this
    recent       [[revision, request id, [key, …] or null], …], oldest first; null: too many keys

Every transaction sets `head`, which puts all transactions into one order. `recent` tells a client
that lost its connection whether its transaction was done, and tells other clients which keys to
read again.

Not here: requests to ZooKeeper (`zookeeper_store.py`).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, unquote

import google_crc32c

from semel.controller.store.base import Transaction, Versioned
from semel.protos.errors import DataDirectoryError, MessageTooLarge

FORMAT: Final = 1
RECENT_MAX: Final = 32
"""Transactions that `head` lists. Only the active controller writes, so a controller that missed
more than this was away for longer than one controller epoch lasts."""
RECENT_KEYS_BYTES_MAX: Final = 512
"""If a transaction's keys are longer in total, `head` does not list them and so stays small."""
TRANSACTION_BYTES_MAX: Final = 1_000_000
"""A server accepts no request above jute.maxbuffer, by default 1,048,575 bytes; the difference
leaves room for `head` and paths."""
OPERATION_BYTES: Final = 160
"""Bytes of an operation besides its path and data: header, ACL."""

_PREFIX: Final = struct.Struct("<QI")


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """The paths of the nodes below one chroot."""

    chroot: str

    @property
    def head(self) -> str:
        """The node that every transaction sets."""
        return f"{self.chroot}/head"

    @property
    def entries(self) -> str:
        """Parent of all entries."""
        return f"{self.chroot}/entries"

    @property
    def members(self) -> str:
        """Parent of the controllers' addresses."""
        return f"{self.chroot}/members"

    @property
    def election(self) -> str:
        """Parent of the live controllers' ephemeral nodes."""
        return f"{self.chroot}/election"

    def entry(self, key: str) -> str:
        """The node of a key."""
        return f"{self.entries}/{entry_name(key)}"


def entry_name(key: str) -> str:
    """The name of a key's node, quoted: a slash would be a level; `.` and `..` are not allowed."""
    return f"={quote(key, safe='')}"


def key_of(name: str) -> str:
    """The key of a node's name."""
    return unquote(name[1:])


def pack(key: str, revision: int, payload: bytes) -> bytes:
    """A node's bytes."""
    return _PREFIX.pack(revision, _crc(key, revision, payload)) + payload


def unpack(key: str, data: bytes) -> Versioned:
    """Revision and payload of a node; raises DataDirectoryError when they are damaged."""
    if len(data) >= _PREFIX.size:
        revision, crc = _PREFIX.unpack_from(data)
        payload = data[_PREFIX.size :]
        if _crc(key, revision, payload) == crc:
            return Versioned(value=payload, version=revision)
    raise DataDirectoryError(
        f"ZooKeeper's node of {key or 'the head'} does not match its checksum: it was written by "
        "another program or is damaged. Import an exported copy under another chroot"
    )


def _crc(key: str, revision: int, payload: bytes) -> int:
    checked = key.encode() + b"\0" + revision.to_bytes(8, "little") + payload
    return int(google_crc32c.value(checked))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recent:
    """One completed transaction."""

    revision: int
    request: str
    """The id that its sender gave it."""
    keys: tuple[str, ...] | None
    """The keys it put or deleted; None when they are too many to list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The newest revision and the recent transactions that led to it."""

    cluster_id: str
    revision: int = 0
    after: int = 0
    """`recent` holds every transaction with a higher revision."""
    recent: tuple[Recent, ...] = ()

    def follow(self, transaction: Transaction, revision: int, request: str) -> Head:
        """The head after one more transaction."""
        keys = sorted(transaction.puts.keys() | transaction.deletes)
        named = sum(len(key.encode()) for key in keys) <= RECENT_KEYS_BYTES_MAX
        done = Recent(
            revision=revision,
            request=request,
            keys=tuple(keys) if named else None,
        )
        recent = (*self.recent, done)
        dropped, kept = recent[:-RECENT_MAX], recent[-RECENT_MAX:]
        after = dropped[-1].revision if dropped else self.after
        return Head(cluster_id=self.cluster_id, revision=revision, after=after, recent=kept)

    def changed_since(self, revision: int) -> set[str] | None:
        """The keys that changed after `revision`; None when `recent` cannot tell."""
        if revision < self.after:
            return None
        changed: set[str] = set()
        for done in self.recent:
            if done.revision > revision:
                if done.keys is None:
                    return None
                changed.update(done.keys)
        return changed

    def revision_of(self, request: str) -> int | None:
        """The revision of a recent transaction; None when `recent` does not hold it."""
        for done in self.recent:
            if done.request == request:
                return done.revision
        return None

    def tells_all_since(self, revision: int) -> bool:
        """True when every transaction done after `revision` is in `recent`."""
        return revision >= self.after

    def dump(self) -> bytes:
        """The bytes of the head's node."""
        content = {
            "format": FORMAT,
            "cluster_id": self.cluster_id,
            "revision": self.revision,
            "after": self.after,
            "recent": [[done.revision, done.request, done.keys] for done in self.recent],
        }
        text = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
        return pack("", self.revision, text.encode())

    @classmethod
    def load(cls, data: bytes) -> Head:
        """Raises DataDirectoryError when the bytes are damaged or from a newer program."""
        entry = unpack("", data)
        content: Mapping[str, Any] = json.loads(entry.value)
        if content["format"] > FORMAT:
            raise DataDirectoryError(
                f"the store in ZooKeeper has format {content['format']}, this program knows up to "
                f"{FORMAT}. Start the newer program"
            )
        return cls(
            cluster_id=content["cluster_id"],
            revision=content["revision"],
            after=content["after"],
            recent=tuple(
                Recent(revision=number, request=request, keys=None if keys is None else tuple(keys))
                for number, request, keys in content["recent"]
            ),
        )


def check_size(transaction: Transaction) -> None:
    """Raises MessageTooLarge for a request so large that a server would cut the connection."""
    size = sum(
        len(entry_name(key)) + len(value) + OPERATION_BYTES
        for key, value in transaction.puts.items()
    )
    size += sum(len(entry_name(key)) + OPERATION_BYTES for key in transaction.deletes)
    if size > TRANSACTION_BYTES_MAX:
        raise MessageTooLarge(
            f"a change of {size} bytes is more than ZooKeeper takes at once "
            f"({TRANSACTION_BYTES_MAX}); nothing was changed. Use fewer queues a topic, or the "
            "embedded store",
            limit_bytes=TRANSACTION_BYTES_MAX,
        )
