"""How much of what is delayed is due when: sums over packed extents, with numpy.

How it works. Extents come as they are packed, in their order, a part at a time, so that whoever
counts a million of them can do something else in between. They rise by due time, so what falls
between two bounds is one slice, and a part costs one binary search for each bound.

Not here: where extents are kept, and their format (`delays.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from semel.broker.state.apply.cancelled_rows import CancelledRows
from semel.broker.state.apply.delayed_extent import EXTENT, DelayedPlace


class DelayFigures(NamedTuple):
    """Sums over batches."""

    batches: int = 0
    messages: int = 0
    bytes: int = 0


class DueHistogram:
    """Sums over the delayed batches of one queue, by when they are due."""

    def __init__(self, bounds_us: Sequence[int], below_ordinal: int) -> None:
        """`bounds_us` rise strictly. Only extents with an ordinal below the one given count."""
        self._bounds_us = np.array(bounds_us, np.int64)
        self._below_ordinal = below_ordinal
        self.figures = [DelayFigures()] * (len(bounds_us) + 1)
        """Item n: due at the bound n at the latest, and later than the one before it; the last one:
        due later than all bounds."""
        self.first_due_us = 0
        """When the first batch that counts is due; 0 without one."""
        self.last_due_us = 0

    def add(self, packed: bytes, cancelled: CancelledRows | None = None) -> DelayedPlace:
        """Adds extents that come behind all before, at least one, without the messages that are
        cancelled. Returns the place of the last."""
        extents = np.frombuffer(packed, EXTENT)
        if cancelled is not None and cancelled.batches:
            extents = extents.copy()
            for at in np.flatnonzero(np.isin(extents["ordinal"], cancelled.ordinals())).tolist():
                extents["messages"][at] -= cancelled.count(int(extents["ordinal"][at]))
        last = DelayedPlace(int(extents["due_us"][-1]), int(extents["ordinal"][-1]))
        counted = extents["ordinal"] < self._below_ordinal
        if not counted.all():
            extents = extents[counted]
        if not len(extents):
            return last
        dues = extents["due_us"]
        self.first_due_us = self.first_due_us or int(dues[0])
        self.last_due_us = int(dues[-1])
        cuts = [0, *np.searchsorted(dues, self._bounds_us, "right").tolist(), len(dues)]
        for at, figures in enumerate(self.figures):
            part = extents[cuts[at] : cuts[at + 1]]
            if len(part):
                self.figures[at] = DelayFigures(
                    figures.batches + len(part),
                    figures.messages + int(part["messages"].sum(dtype=np.int64)),
                    figures.bytes + int(part["length"].sum(dtype=np.int64)),
                )
        return last
