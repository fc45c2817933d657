"""When a window of ids begins and changes in the eyes of the checker: as in the state machine."""

from __future__ import annotations

from typing import Any

from semel.protos.ids import QueueId, QueueKey
from semel.protos.levels import LEVEL_MAX
from semel.protos.slots import SLOT_COUNT
from semel.protos.v1 import common_pb2, control_pb2
from tests.checking.message_ids import IdLog
from tests.kit.state_log import KEY, Group, control, ref

SEED = bytes(range(16))
OTHER = QueueKey(KEY.topic_id, QueueId(1))
HALF = SLOT_COUNT // 2


def settings(window_bytes: int) -> common_pb2.TopicSettings:
    return common_pb2.TopicSettings(dedup=common_pb2.IdDedup(window_bytes=window_bytes, seed=SEED))


class Both(Group):
    """A log that the state and the checker read."""

    def __init__(self, *, queues: tuple[QueueKey, ...] = ()) -> None:
        super().__init__(queues=())
        self.raise_level(LEVEL_MAX)
        for key in queues:
            self.apply(control(create_queue=self.made(key, 4_000)))

    @staticmethod
    def made(key: QueueKey, window_bytes: int) -> control_pb2.CreateQueue:
        start = HALF * key.queue_id
        return control_pb2.CreateQueue(
            queue=ref(key),
            topic="orders",
            slot_start=start,
            slot_end=start + HALF,
            settings=settings(window_bytes),
        )

    def alter(self, window_bytes: int) -> None:
        altered = control_pb2.AlterTopic(topic_id=KEY.topic_id, settings=settings(window_bytes))
        self.apply(control(alter_topic=altered))

    def step(self, name: str, job: int, **fields: Any) -> None:
        record = control_pb2.MoveQueue(
            queue=ref(KEY), job=job, group_id=2, step=f"MOVE_STEP_{name}", **fields
        )
        self.apply(control(move_queue=record))

    def check(self) -> None:
        """Compares the windows, those that tell their first arrival later as far as they do."""
        frames = dict(enumerate(self.frames, 1))
        log, windows = IdLog(1, {}).read(frames), self.state.id_windows.topics
        assert log.topics.keys() == windows.keys()
        for topic_id, topic in log.topics.items():
            window = windows[topic_id]
            assert topic.settings.window_bytes == window.settings.window_bytes
            assert topic.floor <= window.first_arrival
            assert topic.base in (None, window.first_arrival)


def test_changed_settings_begin_no_window_where_the_topic_has_no_queue() -> None:
    """The queue left, the settings were changed, the queue came back: arrivals begin far above."""
    group = Both()
    group.alter(8_000)
    group.check()
    group.step("BEGIN", 1, create=group.made(KEY, 8_000))
    group.check()
    assert group.state.id_windows.topics[KEY.topic_id].first_arrival > 0


def test_changed_settings_count_for_a_queue_that_comes_once_it_is_here() -> None:
    group = Both()
    group.step("BEGIN", 1, create=group.made(KEY, 4_000))
    group.alter(8_000)
    group.check()
    group.step("ABORT", 1)
    group.check()
    assert not group.state.id_windows.topics


def test_changed_settings_count_where_the_topic_has_a_queue() -> None:
    group = Both(queues=(OTHER,))
    group.step("BEGIN", 1, create=group.made(KEY, 4_000))
    group.alter(8_000)
    group.check()
    assert group.state.id_windows.topics[KEY.topic_id].settings.window_bytes == 8_000
