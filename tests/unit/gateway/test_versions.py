"""What clients choose their way of speaking by does not change by accident."""

from __future__ import annotations

import pytest
from kio.index import load_request_schema, load_response_schema

from semel.gateway.versions import TABLE, ApiKey, is_served

# What is removed here breaks a client. What is added, docs/kafka.md names.
FROZEN = {
    "PRODUCE": (0, 3, 8),
    "FETCH": (1, 4, 11),
    "LIST_OFFSETS": (2, 1, 5),
    "METADATA": (3, 0, 8),
    "OFFSET_COMMIT": (8, 2, 7),
    "OFFSET_FETCH": (9, 1, 7),
    "FIND_COORDINATOR": (10, 0, 2),
    "JOIN_GROUP": (11, 0, 5),
    "HEARTBEAT": (12, 0, 3),
    "LEAVE_GROUP": (13, 0, 3),
    "SYNC_GROUP": (14, 0, 3),
    "DESCRIBE_GROUPS": (15, 0, 4),
    "LIST_GROUPS": (16, 0, 2),
    "SASL_HANDSHAKE": (17, 0, 1),
    "API_VERSIONS": (18, 0, 3),
    "CREATE_TOPICS": (19, 2, 4),
    "DELETE_TOPICS": (20, 1, 3),
    "DELETE_RECORDS": (21, 0, 2),
    "INIT_PRODUCER_ID": (22, 0, 4),
    "ADD_PARTITIONS_TO_TXN": (24, 0, 1),
    "ADD_OFFSETS_TO_TXN": (25, 0, 1),
    "END_TXN": (26, 0, 1),
    "TXN_OFFSET_COMMIT": (28, 0, 3),
    "DESCRIBE_CONFIGS": (32, 1, 2),
    "ALTER_CONFIGS": (33, 0, 2),
    "SASL_AUTHENTICATE": (36, 0, 2),
    "CREATE_PARTITIONS": (37, 0, 3),
    "DELETE_GROUPS": (42, 0, 1),
    "INCREMENTAL_ALTER_CONFIGS": (44, 0, 1),
    "OFFSET_DELETE": (47, 0, 0),
    "DESCRIBE_CLUSTER": (60, 0, 2),
}


def test_the_table_is_frozen() -> None:
    table = {key.name: (key.value, each.lowest, each.highest) for key, each in TABLE.items()}
    assert table == FROZEN


@pytest.mark.parametrize("key", ApiKey)
def test_the_schemas_know_every_version(key: ApiKey) -> None:
    for version in range(TABLE[key].lowest, TABLE[key].highest + 1):
        assert load_request_schema(key, version).__api_key__ == int(key)
        assert load_response_schema(key, version).__version__ == version


def test_only_what_the_table_has_is_served() -> None:
    for key in range(-2, 100):
        for version in range(-2, 20):
            served = next((each for each in FROZEN.values() if each[0] == key), None)
            expected = served is not None and served[1] <= version <= served[2]
            assert is_served(key, version) is expected
