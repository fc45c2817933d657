"""Bars in tables: as long as what they stand for, and never nothing for something."""

from __future__ import annotations

import pytest

from semel.console import render


def drawn(value: int, most: int, capsys: pytest.CaptureFixture[str]) -> str:
    table = render.table(["due", ""], [["x", render.bar(value, most)]])
    render.Output(as_json=False).draw(table)
    return capsys.readouterr().out.splitlines()[-1].removeprefix("x").strip()


@pytest.mark.parametrize(
    ("value", "most", "bar"),
    [
        (0, 0, ""),
        (0, 7, ""),
        (7, 7, "█" * 30),
        (1, 2, "█" * 15),
        (1, 30, "█"),
        (1, 60, "▌"),
        (1, 1_000_000, "▏"),
        (999_999, 1_000_000, "█" * 29 + "▉"),
    ],
)
def test_a_bar_is_as_long_as_its_value(
    value: int, most: int, bar: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert drawn(value, most, capsys) == bar
