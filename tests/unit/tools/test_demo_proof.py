"""The demo's checks: a whole topic gives the file again, and every planted fault is noticed."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.protos.errors import InvalidRequest
from tools.demo.acks import AckWatch
from tools.demo.picture import draw
from tools.demo.proof import Copied, Figures, judge, table
from tools.demo.rebuild import Rebuild
from tools.demo.source import Source, standard_library, survey

TEXT = b"first\n\n\r\n\x00\xff\nfive\nsix\nseven, without a newline"
Message = tuple[int, int, int, bytes]  # queue, offset, sequence, value


def make_source(directory: Path, text: bytes = TEXT) -> Source:
    path = directory / "file"
    path.write_bytes(text)
    return survey(path)


def make_messages(text: bytes = TEXT, queues: int = 2) -> list[Message]:
    lines = text.split(b"\n")
    lines = lines[:-1] if lines[-1] == b"" else lines
    return [(n % queues, n // queues, n, line) for n, line in enumerate(lines)]


def rebuild(source: Source, messages: list[Message], batch: int = 2) -> Rebuild:
    result = Rebuild(source, np.zeros(int(source.starts[-1]), np.uint8))
    for queue in sorted({message[0] for message in messages}):
        own = [message for message in messages if message[0] == queue]
        for start in range(0, len(own), batch):
            part = own[start : start + batch]
            result.add(
                queue,
                np.array([m[1] for m in part], np.int64),
                np.array([m[2] for m in part], np.int64),
                pa.array([m[3] for m in part], pa.binary()),
            )
    return result


def faults(result: Rebuild) -> dict[str, int]:
    return {
        "lost": result.lost,
        "duplicates": result.duplicates,
        "invented": result.invented,
        "out_of_order": result.out_of_order,
    }


NONE = {"lost": 0, "duplicates": 0, "invented": 0, "out_of_order": 0}


@given(
    st.lists(st.sampled_from([b"\n", b"a", b"bc", b"\r", b"\xff"]), min_size=1).map(b"".join),
    st.integers(1, 3),
    st.integers(1, 4),
)
def test_all_messages_give_the_file(
    tmp_path_factory: pytest.TempPathFactory, text: bytes, queues: int, batch: int
) -> None:
    source = make_source(tmp_path_factory.mktemp("source"), text)
    result = rebuild(source, make_messages(text, queues), batch)
    assert faults(result) == NONE
    assert result.messages == source.lines == len(make_messages(text))
    assert result.digest() == source.digest


def drop(messages: list[Message]) -> None:
    del messages[3]


def repeat(messages: list[Message]) -> None:
    messages.insert(5, messages[3])


def swap(messages: list[Message]) -> None:
    queue, offset, sequence, value = messages[2]
    other = messages[4]
    messages[2] = (queue, offset, other[2], other[3])
    messages[4] = (queue, other[1], sequence, value)


def change(messages: list[Message]) -> None:
    messages[4] = (*messages[4][:3], b"fivE")


def lengthen(messages: list[Message]) -> None:
    messages[4] = (*messages[4][:3], b"five and more")


def invent(messages: list[Message]) -> None:
    messages.append((0, 99, 99, b"nobody sent this"))


def precede(messages: list[Message]) -> None:
    messages.insert(0, (0, -1, -1, b""))


@pytest.mark.parametrize(
    ("plant", "found", "same_digest"),
    [
        (drop, {"lost": 1}, False),
        (repeat, {"duplicates": 1, "out_of_order": 1}, True),
        (swap, {"out_of_order": 1}, True),
        (change, {}, False),
        (lengthen, {"invented": 1}, False),
        (invent, {"invented": 1}, True),
        (precede, {"invented": 1}, True),
    ],
)
def test_a_planted_fault_is_noticed(
    tmp_path: Path,
    plant: Callable[[list[Message]], None],
    found: dict[str, int],
    same_digest: bool,
) -> None:
    source, messages = make_source(tmp_path), make_messages()
    plant(messages)
    result = rebuild(source, messages, batch=3)
    assert faults(result) == {**NONE, **found}
    assert (result.digest() == source.digest) == same_digest
    assert found or not same_digest


def test_a_rebuild_on_disk_uses_its_scratch_file(tmp_path: Path) -> None:
    source = make_source(tmp_path)
    with Rebuild.on_disk(source, tmp_path / "scratch") as result:
        for queue, offset, sequence, value in make_messages():
            result.add(queue, np.array([offset]), np.array([sequence]), pa.array([value]))
        assert result.digest() == source.digest
    assert (tmp_path / "scratch").exists()


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="empty"):
        make_source(tmp_path, b"")


def test_a_copy_in_any_order_gives_the_file(tmp_path: Path) -> None:
    source = make_source(tmp_path)
    result = Rebuild(source, np.zeros(int(source.starts[-1]), np.uint8))
    for _, _, sequence, value in reversed(make_messages()):
        result.add_unordered(np.array([sequence], np.int64), pa.array([value], pa.binary()))
    copied = Copied.of(result)
    assert copied.judge(source.lines, source.digest)[1]
    result.add_unordered(np.array([0], np.int64), pa.array([b"first"], pa.binary()))
    assert Copied.of(result).judge(source.lines, source.digest) == ("8, 1 twice", False)


def test_the_standard_library_is_one_file_of_whole_lines(tmp_path: Path) -> None:
    standard_library(tmp_path / "a")
    source = survey(tmp_path / "a")
    assert source.lines > 100_000
    assert source.starts[-1] == source.size
    standard_library(tmp_path / "b")
    assert survey(tmp_path / "b").digest == source.digest


COPIED = Copied(messages=100, lost=0, duplicates=0, invented=0, digest="ab")
GOOD = Figures(
    tried=5,
    refused=5,
    lines=100,
    stored=100,
    delivered=100,
    lost=0,
    duplicates=0,
    invented=0,
    out_of_order=0,
    queues=4,
    file_digest="ab",
    topic_digest="ab",
    table=COPIED,
    copy=COPIED,
    verified=True,
    nodes_compared=3,
    nodes=3,
    killed_master=2,
    killed_at=0.3,
    next_master=1,
    term_before=1,
    term_after=2,
    seconds_without_master=0.9,
    loader_killed_at=0.6,
    skipped=60,
    retried=7,
    seconds=12.0,
)


def is_proven(figures: Figures) -> bool:
    return all(line.good is not False for line in judge(figures))


def test_good_figures_are_a_proof() -> None:
    assert is_proven(GOOD)
    assert table(judge(GOOD)).row_count == len(judge(GOOD))


def test_the_picture_shows_the_proof_and_asks_for_nothing_from_elsewhere(tmp_path: Path) -> None:
    draw(judge(GOOD), tmp_path / "demo.svg")
    svg = (tmp_path / "demo.svg").read_text(encoding="utf-8")
    shown = html.unescape(svg).replace("\N{NO-BREAK SPACE}", " ")
    for line in judge(GOOD):
        assert line.name in shown
    assert set(re.findall(r"https?://[^\"' )]+", svg)) <= {"http://www.w3.org/2000/svg"}
    assert "url(http" not in svg


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lines", 101),
        ("stored", 99),
        ("delivered", 101),
        ("lost", 1),
        ("duplicates", 1),
        ("invented", 1),
        ("out_of_order", 1),
        ("topic_digest", "ac"),
        ("table", replace(COPIED, messages=99)),
        ("table", replace(COPIED, lost=1)),
        ("table", replace(COPIED, duplicates=1)),
        ("copy", replace(COPIED, invented=1)),
        ("copy", replace(COPIED, digest="ac")),
        ("verified", False),
        ("nodes_compared", 2),
        ("killed_at", 1.0),
        ("next_master", 2),
        ("term_after", 1),
        ("loader_killed_at", 1.0),
        ("refused", 4),
        ("tried", 0),
    ],
)
def test_every_wrong_figure_breaks_the_proof(name: str, value: Any) -> None:
    assert not is_proven(replace(GOOD, **{name: value}))


def watch_acks(*steps: tuple[float, int]) -> float:
    """Killed at 10 s with 100 acknowledged, another master heard of at 10.5 s."""
    watch = AckWatch(killed=10.0, elected=10.5, done=100)
    for time, done in steps:
        if watch.on_progress(time, done):
            return round(watch.outage, 3)
    raise AssertionError("undecided")


def test_an_outage_ends_with_the_first_acknowledgement_of_the_new_master() -> None:
    assert watch_acks((10.02, 100), (10.4, 100), (10.9, 100), (10.95, 120)) == 0.95


def test_answers_under_way_at_the_kill_are_not_the_end_of_the_outage() -> None:
    assert watch_acks((10.02, 110), (10.3, 115), (10.5, 115), (10.8, 116)) == 0.8


def test_a_master_that_was_heard_of_late_does_not_lengthen_the_outage() -> None:
    quiet = [(10 + n / 100, 104) for n in range(2, 40)]
    resumed = [(10.4 + n / 100, 105 + n) for n in range(30)]
    assert watch_acks((10.01, 104), *quiet, *resumed) == 0.4


def test_nothing_is_decided_before_the_new_master_acknowledged_something() -> None:
    with pytest.raises(AssertionError, match="undecided"):
        watch_acks((10.1, 110), (10.3, 115), (10.7, 115))
