"""The APIs of Kafka that the gateway serves, and of each the versions: the one table.

`ApiVersions` answers with it, the server refuses what it lacks, and a test freezes it: a client
chooses by this table how it speaks, so no line of it changes by accident. Names are those of the
Kafka protocol, keys and versions as well.

Not here: what a request does (the modules of handlers), in which bytes it travels (`wire.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final


class ApiKey(IntEnum):
    """The APIs that are served, by Kafka's key."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    INCREMENTAL_ALTER_CONFIGS = 44
    OFFSET_DELETE = 47
    DESCRIBE_CLUSTER = 60


@dataclass(frozen=True, slots=True)
class Served:
    """The versions of one API that are served: `lowest` to `highest`, both inclusive."""

    lowest: int
    highest: int


TABLE: Final[dict[ApiKey, Served]] = {
    ApiKey.PRODUCE: Served(3, 8),
    ApiKey.FETCH: Served(4, 11),
    ApiKey.LIST_OFFSETS: Served(1, 5),
    ApiKey.METADATA: Served(0, 8),
    ApiKey.OFFSET_COMMIT: Served(2, 7),
    ApiKey.OFFSET_FETCH: Served(1, 7),
    ApiKey.FIND_COORDINATOR: Served(0, 2),
    ApiKey.JOIN_GROUP: Served(0, 5),
    ApiKey.HEARTBEAT: Served(0, 3),
    ApiKey.LEAVE_GROUP: Served(0, 3),
    ApiKey.SYNC_GROUP: Served(0, 3),
    ApiKey.DESCRIBE_GROUPS: Served(0, 4),
    ApiKey.LIST_GROUPS: Served(0, 2),
    ApiKey.SASL_HANDSHAKE: Served(0, 1),
    ApiKey.API_VERSIONS: Served(0, 3),
    ApiKey.CREATE_TOPICS: Served(2, 4),
    ApiKey.DELETE_TOPICS: Served(1, 3),
    ApiKey.DELETE_RECORDS: Served(0, 2),
    ApiKey.INIT_PRODUCER_ID: Served(0, 4),
    ApiKey.ADD_PARTITIONS_TO_TXN: Served(0, 1),
    ApiKey.ADD_OFFSETS_TO_TXN: Served(0, 1),
    ApiKey.END_TXN: Served(0, 1),
    ApiKey.TXN_OFFSET_COMMIT: Served(0, 3),
    ApiKey.DESCRIBE_CONFIGS: Served(1, 2),
    ApiKey.ALTER_CONFIGS: Served(0, 2),
    ApiKey.SASL_AUTHENTICATE: Served(0, 2),
    ApiKey.CREATE_PARTITIONS: Served(0, 3),
    ApiKey.DELETE_GROUPS: Served(0, 1),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Served(0, 1),
    ApiKey.OFFSET_DELETE: Served(0, 0),
    ApiKey.DESCRIBE_CLUSTER: Served(0, 2),
}


def is_served(key: int, version: int) -> bool:
    """Whether a request of that API and version is answered."""
    try:
        served = TABLE[ApiKey(key)]
    except (ValueError, KeyError):
        return False
    return served.lowest <= version <= served.highest
