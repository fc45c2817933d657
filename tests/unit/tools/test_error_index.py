"""docs/errors.md is what the classes of errors give, and no error lacks its remedy."""

from __future__ import annotations

import pytest

from semel.protos.errors import (
    CLASS_OF_CODE,
    CallerError,
    Closed,
    DelayThrottled,
    SemelError,
    Throttled,
)
from tools import error_index


def test_the_page_is_what_the_classes_give() -> None:
    written = error_index.PAGE.read_text(encoding="utf-8")
    assert written == error_index.page(), "run `python -m tools.error_index`"


def test_every_error_has_a_remedy_and_no_remedy_is_left_over() -> None:
    names = {error.__name__ for error in CLASS_OF_CODE.values() if error is not SemelError}
    assert set(error_index.REMEDIES) == names


def test_a_planted_error_without_a_remedy_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(error_index.REMEDIES, "NotMaster")
    with pytest.raises(KeyError, match="NotMaster"):
        error_index.page()


def test_every_error_stands_on_the_page_once() -> None:
    page = error_index.page()
    for error in CLASS_OF_CODE.values():
        expected = 0 if error is SemelError else 1
        assert page.count(f"### {error.__name__}\n") == expected


def test_an_error_belongs_to_its_nearest_family() -> None:
    assert error_index.FAMILIES[error_index.family_of(Throttled)][0] == "Try again"
    assert error_index.family_of(DelayThrottled) is CallerError
    assert error_index.family_of(Closed) is SemelError
