"""The pictures in the documents are those of the recorded figures."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from benchmarks import recorded

ROOT = Path(__file__).parents[3]
PERFORMANCE = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
BARS = recorded.recorded()["beside"]["bars"]


def texts(document: str) -> list[str]:
    found = ElementTree.fromstring(document).iter("{http://www.w3.org/2000/svg}text")
    return [each.text or "" for each in found]


def test_the_pictures_in_the_documents_show_what_is_recorded() -> None:
    """Their texts are compared: another release of matplotlib may draw other curves."""
    drawn = recorded.drawn()
    assert drawn.keys() <= {path.name for path in recorded.PICTURES.iterdir()}
    for name, document in drawn.items():
        kept = (recorded.PICTURES / name).read_text(encoding="utf-8")
        assert texts(kept) == texts(document), "draw them anew: ./run bench recorded"


def test_the_same_figures_give_the_same_bytes(tmp_path: Path) -> None:
    assert recorded.main(["--directory", str(tmp_path)]) == 0
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == recorded.drawn()


def test_every_part_says_when_and_how_it_was_measured() -> None:
    for part in recorded.recorded().values():
        assert date.fromisoformat(part["measured"])
        assert part["source"]
        assert all(command.startswith("./run bench ") for command in part["commands"])


@pytest.mark.parametrize("bar", BARS, ids=[bar["what"] for bar in BARS])
def test_the_short_picture_shows_figures_of_the_table(bar: Mapping[str, Any]) -> None:
    (row,) = [
        line for line in PERFORMANCE.splitlines() if line.startswith("| ") and bar["row"] in line
    ]
    _, _, peer, semel, ratio, *_ = row.split("|")
    for figure, cell in ((bar["peer"], peer), (bar["semel"], semel)):
        assert {*re.findall(r"[\d.,]*\d", figure)} <= {*re.findall(r"[\d.,]*\d", cell)}
    told = [float(each) for each in re.findall(r"[\d.]+", ratio.partition("×")[0])]
    factors = [bar["better"], 1 / bar["better"]]
    assert any(min(told) * 0.95 <= factor <= max(told) * 1.05 for factor in factors), (
        f"{factors} is not the table's {told}"
    )


def test_the_short_picture_is_read_in_ten_seconds() -> None:
    assert len(BARS) <= recorded.BARS_MAX
    assert any(bar["better"] < 1 for bar in BARS), "what Semel is worse at is shown, too"
