"""How far a mirror is, and what became of its topics."""

from __future__ import annotations

from dataclasses import dataclass

from semel.client.admin.descriptions import Described


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicProgress(Described):
    """One topic that is copied."""

    name: str
    queues: int
    lag: int
    """Messages of the source that a promotion would not have, as far as is known."""
    lag_seconds: float | None
    """How old what would be promoted is; None if something of it is missing."""
    problem: str
    """Why it is not copied now; empty: it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorProgress(Described):
    """How far a mirror is."""

    topics: tuple[TopicProgress, ...]

    @property
    def lag(self) -> int:
        """Messages of all topics that a promotion would not have."""
        return sum(topic.lag for topic in self.topics)

    @property
    def lag_seconds(self) -> float | None:
        """How old the oldest of what would be promoted is; None if something is missing."""
        ages = [topic.lag_seconds for topic in self.topics]
        if not ages or None in ages:
            return None
        return max(age for age in ages if age is not None)

    @property
    def complete(self) -> bool:
        """Whether a promotion would have all that the source had when it was last asked."""
        return self.lag == 0 and self.lag_seconds is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class MirroredQueueInfo(Described):
    """One queue of a mirrored topic."""

    queue: int
    end: int
    """It goes on here, or would if it was promoted now."""
    known_us: int
    """As of when that is what the source had, by the source's clock; 0: nothing is whole yet."""
    copied_end: int
    """Where the copy ends; what is above `end` is dropped with a promotion."""
    delayed: int
    """Delayed messages."""
    groups: int
    """Consumer groups whose offsets are there."""
    producers: int
    """Named producers that go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MirroredTopicInfo(Described):
    """One topic that is, or was, a copy of another cluster's."""

    name: str
    topic_id: str
    """16 hexadecimal digits."""
    stage: str
    """copying, promoting or promoted."""
    queues: tuple[MirroredQueueInfo, ...]
    problem: str
    """Why it cannot be promoted now; empty: it can, or is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorsInfo(Described):
    """A cluster as the target of a mirror."""

    source: str
    """Id of the cluster whose topics it has; empty: it is no target."""
    topics: tuple[MirroredTopicInfo, ...]
