"""Pages of long lists. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

PAGE_ROWS: Final = 50
_Row = TypeVar("_Row")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[_Row]):
    """One page of a list."""

    rows: Sequence[_Row]
    number: int
    """From 1."""
    pages: int
    """At least 1."""
    matched: int
    """Rows of all pages."""
    scanned: int
    """Rows that were looked at to find them."""

    @property
    def previous(self) -> int | None:
        """The number of the page before; None on the first."""
        return self.number - 1 if self.number > 1 else None

    @property
    def next(self) -> int | None:
        """The number of the page behind; None on the last."""
        return self.number + 1 if self.number < self.pages else None


def page_of(
    rows: Sequence[_Row], number: int, *, scanned: int | None = None, size: int = PAGE_ROWS
) -> Page[_Row]:
    """Returns a page of rows that are all here; the nearest one if there are not so many."""
    pages = max(1, -(-len(rows) // size))
    number = min(max(1, number), pages)
    start = (number - 1) * size
    return Page(
        rows=rows[start : start + size],
        number=number,
        pages=pages,
        matched=len(rows),
        scanned=len(rows) if scanned is None else scanned,
    )
