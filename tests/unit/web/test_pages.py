"""Addresses, and the screens to which pages belong."""

from __future__ import annotations

import pytest

from semel.web.pages import SCREENS, asset, link, section


@pytest.mark.parametrize(
    ("path", "screen"),
    [
        ("/", "/"),
        ("/topics", "/topics"),
        ("/topic/alter", "/topics"),
        ("/tail", "/messages"),
        ("/message", "/messages"),
        ("/group/reset", "/groups"),
        ("/transaction", "/transactions"),
        ("/producer", "/producers"),
        ("/audit", "/audit"),
        ("/login", ""),
        ("/nothing", ""),
    ],
)
def test_a_page_belongs_to_a_screen(path: str, screen: str) -> None:
    assert section(path) == screen


def test_every_screen_has_a_letter_of_its_own() -> None:
    assert len({screen.letter for screen in SCREENS}) == len(SCREENS)
    assert all(section(screen.path) == screen.path for screen in SCREENS)


def test_an_address_has_what_is_not_empty() -> None:
    assert link("/a") == "/a"
    assert link("/a", x=None, y="") == "/a"
    assert link("/a", x=0, y='&"<ä/') == "/a?x=0&y=%26%22%3C%C3%A4%2F"
    assert asset("console.css").startswith("/static/console.css?v=")
