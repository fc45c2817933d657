"""What the broker's program makes of its options, and what it sets up before it serves."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from pathlib import Path
from typing import Any

import click
import pytest

from semel.broker.__main__ import main, settings_of
from semel.broker.config import BrokerConfig
from semel.broker.replica.pools import THREADS, Pools, start_threads
from semel.protos.ids import GroupId, NodeId
from semel.protos.settings import SettingOption

REQUIRED = ["--data", "d", "--cluster-id", "c", "--group", "1", "--node", "1"]
REQUIRED += ["--listen", "127.0.0.1:7171"]
NOT_SETTINGS = ("config", "as_json", "log_level", "log_format", "insecure")
NUMBERS = [
    option
    for option in main.params
    if isinstance(option, SettingOption)
    and isinstance(option.type, click.IntRange)
    and not option.required
]


def started_with(*arguments: str) -> BrokerConfig:
    params = main.make_context("semel broker", [*REQUIRED, *arguments]).params
    return settings_of(**{name: params[name] for name in params if name not in NOT_SETTINGS})


def leaves(config: Any) -> dict[str, Any]:
    """Each field's value, those of the nested configs under their own names."""
    nested = [value for value in dataclasses.asdict(config).values() if isinstance(value, dict)]
    return {**dataclasses.asdict(config), **{k: v for one in nested for k, v in one.items()}}


def test_options_that_are_left_out_leave_the_defaults_of_the_config() -> None:
    assert started_with() == BrokerConfig(
        data=Path("d"),
        cluster_id="c",
        group_id=GroupId(1),
        node_id=NodeId(1),
        listen="127.0.0.1:7171",
        members={NodeId(1): "127.0.0.1:7171"},
    )


@pytest.mark.parametrize("option", NUMBERS, ids=lambda option: option.opts[0])
def test_a_number_reaches_the_field_that_its_flag_is_documented_by(option: SettingOption) -> None:
    before = leaves(started_with())
    value = 3 if option.field == "level_max" else (before[option.field] or 0) + 1
    after = leaves(started_with(option.opts[0], str(value)))
    changed = [
        name for name in after if after[name] != before[name] and name not in ("log", "raft")
    ]
    assert changed == [option.field]
    assert after[option.field] == value


def test_pairs_lists_and_names_reach_their_fields() -> None:
    config = started_with(
        *("--member", "1=127.0.0.1:7171", "--member", "2=127.0.0.1:7172"),
        *("--member", "3=127.0.0.1:7173", "--peer-at", "2=127.0.0.1:1"),
        *("--peer-stream-at", "3=127.0.0.1:2", "--controllers", "127.0.0.1:7070,127.0.0.1:7071"),
        *("--durability", "interval", "--sync-by", "thread", "--rack", "r"),
        *("--advertise", "127.0.0.1:9", "--allow-same-machine", "--found", "f"),
    )
    assert sorted(config.members) == [1, 2, 3]
    assert config.peers_at == {NodeId(2): "127.0.0.1:1"}
    assert config.peer_streams_at == {NodeId(3): "127.0.0.1:2"}
    assert config.controllers == ("127.0.0.1:7070", "127.0.0.1:7071")
    assert (config.log.sync_interval_ms, config.log.sync_by) == (100, "thread")
    assert (config.rack, config.advertise, config.found) == ("r", "127.0.0.1:9", "f")
    assert config.allow_same_machine
    joining = started_with("--join", "127.0.0.1:7172,127.0.0.1:7173")
    assert (joining.join, joining.members) == (("127.0.0.1:7172", "127.0.0.1:7173"), {})


def named(prefix: str) -> int:
    return sum(thread.name.startswith(prefix) for thread in threading.enumerate())


def test_all_readers_are_there_before_anything_is_read() -> None:
    with contextlib.ExitStack() as stack:
        pools = Pools.opened(stack.callback)
        pools.group.submit(int).result()  # recovery has used one of them
        start_threads(pools)
        for name, threads in THREADS.items():
            assert named(f"reader-{name}") == threads
            assert getattr(pools, name).submit(lambda: 7).result(30) == 7


def test_a_busy_pool_keeps_no_other_one_waiting() -> None:
    done = threading.Event()
    with contextlib.ExitStack() as stack:
        pools = Pools.opened(stack.callback)
        busy = [pools.clients.submit(done.wait, 30) for _ in range(THREADS["clients"])]
        start_threads(pools)
        assert pools.group.submit(lambda: 7).result(30) == 7
        assert not any(each.done() for each in busy)
        done.set()
