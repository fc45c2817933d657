"""The node's log as the Raft core reads it: entries without their bytes, but with memberships."""

from __future__ import annotations

from semel.broker.log import Log
from semel.broker.memory import BodyStore
from semel.broker.raft import EntryMeta, Membership


class CoreLog:
    """Implements `raft.LogView` over the log, and remembers the memberships in it."""

    def __init__(self, log: Log, memberships: dict[int, Membership], bodies: BodyStore) -> None:
        """`bodies` travel with the entries of this log and count for their sizes."""
        self._log = log
        self._bodies = bodies
        self._memberships = memberships
        """Memberships of the entries that may still be truncated, by index."""
        self.unreadable_through = 0
        """The newest applied entry of which every copy is damaged; 0 if there is none. A peer that
        needs it is offered a snapshot."""

    @property
    def first_index(self) -> int:
        return max(self._log.first_index, self.unreadable_through + 1)

    @property
    def last_index(self) -> int:
        return self._log.last_index

    @property
    def last_term(self) -> int:
        return self._log.last_term

    @property
    def synced_index(self) -> int:
        return self._log.synced_index

    def term_at(self, index: int) -> int | None:
        return self._log.term_at(index)

    def fit(self, lo: int, hi_max: int, max_bytes: int) -> int:
        hi = self._log.fit(lo, hi_max, max_bytes)
        if not self._bodies.bytes:
            return hi
        for index in range(lo, hi):
            max_bytes -= self._log.size_of(index) + self._bodies.entry_bytes(index)
            if max_bytes < 0:
                return max(index, min(lo + 1, hi))
        return hi

    def meta(self, index: int) -> EntryMeta:
        term = self._log.term_at(index)
        assert term is not None, f"entry {index} is not in the log"
        return EntryMeta(
            index=index,
            term=term,
            size=self._log.size_of(index) + self._bodies.entry_bytes(index),
            membership=self._memberships.get(index),
        )

    def appended(self, meta: EntryMeta) -> None:
        """The entry is in the log from now on."""
        if meta.membership is not None:
            self._memberships[meta.index] = meta.membership

    def truncated(self, from_index: int) -> None:
        """Entries from `from_index` on are gone."""
        for index in [index for index in self._memberships if index >= from_index]:
            del self._memberships[index]
