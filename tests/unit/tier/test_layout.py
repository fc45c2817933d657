"""Names are made and read by one table, which is the document's."""

from __future__ import annotations

import pytest

from semel.protos.errors import InvalidRequest
from semel.protos.ids import QueueId, QueueKey, TopicId
from semel.tier import layout
from semel.tier.layout import Kind, ObjectName
from tests.kit.format_tables import tables

QUEUE = QueueKey(TopicId(0xAB), QueueId(7))
SHA = "0123456789abcdef" * 4


def made() -> dict[Kind, str]:
    return {
        Kind.DATA: layout.data_name("c", QUEUE, 5, 17, SHA),
        Kind.PAGE: layout.page_name("c", QUEUE, 5, 17, SHA),
        Kind.MANIFEST: layout.manifest_name("c", QUEUE, 5, SHA),
        Kind.POINTER: layout.pointer_name("c", QUEUE, 5),
        Kind.FACTS: layout.facts_name("c", QUEUE, 5, 9, SHA),
    }


def test_names_are_those_of_the_document() -> None:
    (described,) = tables("tier.md", "Names")
    words = {
        "CLUSTER": "c",
        "TOPIC": f"{0xAB:016x}",
        "QUEUE": f"{7:010d}",
        "START": f"{5:020d}",
        "END": f"{17:020d}",
        "NUMBER": f"{5:020d}",
        "SHA": SHA[:32],
        "TIME": f"{9:020d}",
    }
    expected = set()
    for row in described:
        name = row["name"].strip("`")
        for word, value in words.items():
            name = name.replace(word, value)
        expected.add(name)
    names = {
        layout.IDENTITY,
        layout.clock_name("c"),
        layout.topic_name("c", 0xAB),
        layout.deleted_name("c", QUEUE),
        *made().values(),
    }
    assert names == expected


def test_a_name_is_read_as_it_was_made() -> None:
    for kind, name in made().items():
        assert layout.parse("c", name) == ObjectName(QUEUE, kind, 5, False)
        temporary = layout.temporary_name(name, "0123456789abcdef")
        assert layout.parse("c", temporary) == ObjectName(QUEUE, kind, 5, True)
        assert layout.parse("other", name) is None
    assert layout.parse_topic("c", layout.topic_name("c", 0xAB)) == 0xAB


@pytest.mark.parametrize("name", [*made().values(), layout.topic_name("c", 1), layout.IDENTITY])
def test_nothing_else_is_taken_for_a_name(name: str) -> None:
    for strange in ("x" + name, name + "x", name + ".tmp-", name.replace("0", "", 1), name.upper()):
        assert layout.parse("c", strange) is None
        assert layout.parse_topic("c", strange) is None
    assert layout.parse("c", f"c/topics/{name}") is None


@pytest.mark.parametrize("bad", ["", ".", "..", "a/b", "-a", "a b", "a" * 129, "ä"])
def test_a_cluster_id_that_is_no_name_of_a_folder_is_refused(bad: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot name a folder"):
        layout.check_cluster_id(bad)
