"""Where a page of the audit logs goes on, as part of an address."""

from __future__ import annotations

import base64

import pytest

from semel.protos.errors import InvalidRequest
from semel.web.screens.audit import PLACE_CHARACTERS_MAX, place_of, positions_of


def test_a_place_comes_back_as_it_was() -> None:
    positions = {"broker 1": "0a0b0c0d:17", "controller 1": ""}
    assert positions_of(place_of(positions)) == positions
    assert positions_of("") == {}


@pytest.mark.parametrize(
    "place",
    [
        "x",
        "ä",
        base64.urlsafe_b64encode(b"[1]").decode(),
        base64.urlsafe_b64encode(b'{"a": 1}').decode(),
        base64.urlsafe_b64encode(b"[" * 5_000).decode(),
        "a" * (PLACE_CHARACTERS_MAX + 4),
    ],
)
def test_what_is_none_is_refused(place: str) -> None:
    with pytest.raises(InvalidRequest, match="no page of the audit logs"):
        positions_of(place)
