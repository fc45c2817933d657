"""Keys and records, as the page about the format tells them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from semel.controller import records
from semel.controller.store import Versioned
from semel.controller.store.sqlite import APPLICATION_ID, FORMAT_VERSION, entry_crc
from semel.protos.errors import DataDirectoryError
from semel.protos.v1 import metadata_pb2

PAGE = Path(__file__).parents[3] / "docs" / "formats" / "metadata.md"


def test_the_page_lists_every_key_and_its_message() -> None:
    rows = dict(re.findall(r"^\| `(/[^`]+)` \| `(\w+)` \|", PAGE.read_text(), re.MULTILINE))
    assert rows == {
        records.CLUSTER: "ClusterRecord",
        records.LEVEL: "LevelRecord",
        records.topic_key("NAME"): "TopicRecord",
        records.DELETING + "TOPIC_ID": "TopicRecord",
        records.BROKERS + "GROUP_ID": "BrokerGroupRecord",
        records.FOUNDINGS + "GROUP_ID": "FoundingRecord",
        records.producer_key("NAME"): "ProducerRecord",
        records.PRODUCER_IDS: "ProducerIdsRecord",
        records.consumer_group_key("GROUP"): "ConsumerGroupRecord",
        records.RIGHTS: "RightsRecord",
        records.user_key("NAME"): "UserRecord",
        records.SCRAM: "ScramSecretRecord",
        records.MOVES + "TOPIC_ID/QUEUE_ID": "MoveRecord",
        records.RESTORE: "RestoreRecord",
        records.RESTORING + "TOPIC_ID": "RestoringTopic",
        records.MIRRORS: "MirrorsRecord",
        records.MIRRORED + "TOPIC_ID": "MirroredTopic",
    }
    stored = {name for name in metadata_pb2.DESCRIPTOR.message_types_by_name if "Record" in name}
    parts = {"ConsumerMemberRecord", "QueueRecord", "SplitRecord"}  # of other records
    assert stored - set(rows.values()) == parts


def test_the_page_tells_the_files_marks() -> None:
    text = PAGE.read_text()
    assert f"0x{APPLICATION_ID:08X}" in text
    assert f"`PRAGMA user_version` | {FORMAT_VERSION}," in text


def test_no_two_names_share_a_key() -> None:
    names = ["a", "a/b", "a%2Fb", "a b", "a+b", "A", "ä", "..", "a/../b"]
    assert len({records.producer_key(name) for name in names}) == len(names)
    assert all(records.producer_key(name).count("/") == 2 for name in names)


def test_the_checksum_covers_key_version_and_value() -> None:
    crc = entry_crc("/a", 1, b"v")
    assert crc not in (entry_crc("/b", 1, b"v"), entry_crc("/a", 2, b"v"), entry_crc("/a", 1, b"w"))


def test_a_value_that_is_no_message_is_told_by_key() -> None:
    with pytest.raises(DataDirectoryError, match="/cluster"):
        records.load(
            metadata_pb2.ClusterRecord, records.CLUSTER, Versioned(value=b"\xff", version=1)
        )
