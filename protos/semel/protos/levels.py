"""Feature levels: the range that a program knows, how programs exchange it, and their checks.

How it works. One series of numbers covers the whole of Semel. A *program* knows a range of levels,
which its code determines. A *log* of a broker group, and the controllers' *metadata*, are each at
one level, the *active* one. It is written in the log or in the metadata, determines which kinds of
records and rules may appear there, and rises only when an operator orders it.

Every call carries the caller's levels in its metadata (`semel-levels-bin`), which are checked
before the handler runs. A client that opens a stream gets the broker's levels before it sends the
first byte. A caller without levels is older than this exchange: it may know levels up to
`UNTOLD_MAX`, and how many of them is unknown.

Format. The metadata's value is a serialized `Levels` (`v1/common.proto`).

Not here: raising a level (`broker/replica/feature_levels.py`, `controller/epoch.py`), opening
streams (`transport/streams.py` of the client).
"""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Iterable
from typing import Final

from google.protobuf.message import DecodeError

from semel.protos.errors import InvalidRequest, UnsupportedVersion
from semel.protos.v1.common_pb2 import Levels

LEVELS_KEY: Final = "semel-levels-bin"

SPLIT_LEVEL: Final = 2
"""From here on a log may hold splits of queues."""
TRANSACTION_LEVEL: Final = 3
"""From here on a log may hold transactions."""
MOVE_LEVEL: Final = 4
"""From here on a log may hold queues that come from other groups, or go there."""
DELAY_LEVEL: Final = 5
"""From here on a log may hold batches with a delivery time."""
METADATA_LEVEL: Final = 6
"""From here on a log may hold commits with metadata. All programs that know this level send their
levels; an older program halts at the entry that raises a log to it."""
ID_LEVEL: Final = 7
"""From here on a log may hold windows of message ids."""
NULL_LEVEL: Final = 8
"""From here on a log may hold null values."""
COMPACTION_LEVEL: Final = 8
"""From here on a log may hold compacted batches, and topics may be compacted."""
DELAYED_MOVE_LEVEL: Final = 8
"""From here on queues with delayed messages may be moved."""
DELAY_LIMIT_LEVEL: Final = 8
"""From here on a topic may have a limit of what is due in one second."""
HISTORY_LEVEL: Final = 8
"""From here on a log remembers what it released of delayed messages, and when."""
DELAYED_SPLIT_LEVEL: Final = 9
"""From here on queues with delayed messages may be split."""
TIER_LEVEL: Final = 9
"""From here on the older messages of a queue may be in an object store."""
MEMORY_LEVEL: Final = 9
"""From here on a topic may keep its messages in memory only."""
COMPACTED_MOVE_LEVEL: Final = 9
"""From here on queues of compacted topics may be moved."""
SHARED_FETCH_LEVEL: Final = 9
"""From here on a program serves thousands of fetches of one stream at a time: a broker that knows
this level, whatever level its log is at."""
RIGHTS_LEVEL: Final = 9
"""From here on the controllers' metadata may hold rules of who may do what."""

USERS_LEVEL: Final = 9
"""From here on the controllers' metadata may hold users with passwords."""
MIRROR_LEVEL: Final = 9
"""From here on a log may hold copies of another cluster's queues, and the metadata its topics."""
KAFKA_LEVEL: Final = 9
"""From here on a log may hold commits that go back and locks of a child beside its parent, and the
metadata groups of Kafka's clients and the gateways."""
CONTEXT_LEVEL: Final = 9
"""From here on a log may hold batches with a context, once for all their messages."""
READERS_LEVEL: Final = CONTEXT_LEVEL
"""The last level that changed what a reader gets: all readers that know it may get the same
bytes."""
GROUP_QUEUES_LEVEL: Final = 10
"""From here on a consumer group may be forgotten on some queues alone."""
STAGED_COMMITS_LEVEL: Final = 10
"""From here on a log may hold progress of consumer groups that is staged with a transaction."""
SCRAM_LEVEL: Final = 10
"""From here on the controllers' metadata may hold what SCRAM checks passwords by."""
KAFKA_TRANSACTIONS_LEVEL: Final = STAGED_COMMITS_LEVEL
"""From here on Kafka's clients may have transactions: all programs tell of stagers what a gateway
needs to know."""

LEVEL_MIN: Final = 0
"""The lowest level that this program knows; a log that never needed another is at 0."""
LEVEL_MAX: Final = 10
"""The highest level that this program knows, for logs and for metadata alike."""
UNTOLD_MAX: Final = 5
"""The highest level of any program that does not send its levels."""

_FEATURES: Final = {
    SPLIT_LEVEL: "splits of queues",
    TRANSACTION_LEVEL: "transactions",
    MOVE_LEVEL: "moves of queues",
    DELAY_LEVEL: "delayed messages",
    METADATA_LEVEL: "commits with metadata",
    ID_LEVEL: "dedup by message id",
    NULL_LEVEL: "null values, compaction, limits of what is due in a second, the history of"
    " releases, and moves of queues with delayed messages,",
    TIER_LEVEL: "tiers, memory topics, moves of compacted queues, splits of queues with delayed"
    " messages, rules of who may do what, users with passwords, mirrors of other"
    " clusters, groups of Kafka's clients, and contexts of whole batches,",
    STAGED_COMMITS_LEVEL: "commits of consumer groups in transactions, transactions of Kafka's"
    " clients, the deletion of a group's progress in some topics, and logins by SCRAM,",
}


def feature_texts(above: int, up_to: int) -> list[str]:
    """Returns what a rise from level `above` to level `up_to` allows, one text a level."""
    return [
        f"level {level}: {text.rstrip(',')}"
        for level, text in _FEATURES.items()
        if above < level <= up_to
    ]


@functools.cache
def program_version() -> str:
    """Returns the version of this program, for human readers."""
    return importlib.metadata.version("semel")


@functools.lru_cache(maxsize=256)
def own_levels(level_max: int = LEVEL_MAX, active: int = 0) -> Levels:
    """Returns the levels that this program sends. A lower `level_max` makes it behave as an older
    program.

    The same arguments give the same object, which must not be changed.
    """
    return Levels(
        min=min(LEVEL_MIN, level_max), max=level_max, version=program_version(), active=active
    )


def levels_metadata(levels: Levels) -> tuple[tuple[str, bytes], ...]:
    """Returns levels as metadata of a call or of an answer."""
    return ((LEVELS_KEY, levels.SerializeToString()),)


def told_levels(metadata: Iterable[tuple[str, str | bytes]] | None) -> Levels | None:
    """Returns the levels that the other side sent, or None from a program that is older than this
    exchange.

    Raises InvalidRequest.
    """
    for key, value in metadata or ():
        if key == LEVELS_KEY:
            return _decoded(value if isinstance(value, bytes) else value.encode())
    return None


@functools.lru_cache(maxsize=256)
def _decoded(value: bytes) -> Levels:
    try:
        return Levels.FromString(value)
    except DecodeError:
        raise InvalidRequest(f"the metadata {LEVELS_KEY} is no Levels message") from None


def untold_levels() -> Levels:
    """Returns the levels to assume of a program that does not send them."""
    return Levels(min=0, max=UNTOLD_MAX, version="")


def check_levels(own: Levels, own_name: str, other: Levels, other_name: str) -> None:
    """Raises UnsupportedVersion unless both programs know a level in common."""
    if max(own.min, other.min) <= min(own.max, other.max):
        return
    older = own_name if own.max < other.max else other_name
    raise UnsupportedVersion(
        f"{_program(other_name, other)}, {_program(own_name, own)}: they have no feature level in"
        f" common; upgrade {older}"
    )


def check_member(peer: str, told: Levels, level: int) -> None:
    """Raises UnsupportedVersion unless a peer knows the rules of a log at `level`."""
    if told.max < level:
        raise UnsupportedVersion(
            f"{_program(peer, told)}, and the group's log is at level {level}: upgrade {peer}",
            level=level,
        )


def lacking(level: int, active: int, where: str) -> UnsupportedVersion:
    """Returns the error for a request that needs `level` of a log at a lower one."""
    return UnsupportedVersion(
        f"{where} is at feature level {active}, and {_FEATURES.get(level, 'this')} need"
        f" level {level}: upgrade every node, then say `semel cluster upgrade --finish`",
        level=level,
    )


def _program(name: str, levels: Levels) -> str:
    if not levels.version:
        return f"{name} is older than feature levels that are told (at most {levels.max})"
    return f"{name} runs Semel {levels.version} with feature levels {levels.min} to {levels.max}"
