"""In which order the tests run, and which process of `./run test` runs what.

How it works. A process takes one *piece* after the other: a file, whose tests may share what is
dear to make, or, in the directories of SINGLE, one test, since these are long and share nothing.
Some pieces compute, others wait for processes most of the time. So each kind is spread evenly over
the run, that the cores are never without something to compute. The files of short tests come last,
that no process waits long for the others at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

SINGLE: Final = ("tests/pythons/", "tests/world/", "tests/sim/", "tests/faults/")
SHARING: Final = ("tests/world/test_budget.py",)
"""Files there whose tests share something after all."""
LONG: Final = (("tests/pythons/",), ("tests/world/", "tests/sim/"))
"""Directories whose tests compute, each row a kind. What is in none of them and not SHORT waits."""
SHORT: Final = ("tests/unit/", "tests/checking/", "tests/scenarios/", "tests/known_bugs/")
T = TypeVar("T")


def piece_of(node_id: str) -> str:
    """What one process runs as a whole, of which the test is a part."""
    file = node_id.partition("::")[0]
    alone = file.startswith(SINGLE) and file not in SHARING
    return node_id if alone else file


def in_order(node_ids: Iterable[str]) -> list[str]:
    """The tests in the order in which they begin."""
    pieces: dict[str, list[str]] = {}
    for node_id in node_ids:
        pieces.setdefault(piece_of(node_id), []).append(node_id)
    kinds = {kind: [piece for piece in pieces if piece.startswith(kind)] for kind in (*LONG, SHORT)}
    known = {piece for kind in kinds.values() for piece in kind}
    short = kinds.pop(SHORT)
    spread = spread_evenly([*kinds.values(), [piece for piece in pieces if piece not in known]])
    return [node_id for piece in (*spread, *short) for node_id in pieces[piece]]


def spread_evenly(kinds: Sequence[Sequence[T]]) -> list[T]:
    """All in one row, those of a kind in their order and as far from each other as they can be."""
    places = [
        ((number + 0.5) / len(kind), at, one)
        for at, kind in enumerate(kinds)
        for number, one in enumerate(kind)
    ]
    return [one for _, _, one in sorted(places, key=lambda place: place[:2])]


class Pieces(LoadFileScheduling):  # type: ignore[misc]
    """Gives each process of xdist the next piece as soon as it has nearly done what it has."""

    def _split_scope(self, nodeid: str) -> str:
        return piece_of(nodeid)
