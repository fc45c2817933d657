"""Documentation of settings: its default is the real one, zero is allowed where it says so, and no
setting of a component that operators configure goes without.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from semel.broker.__main__ import main as broker_command
from semel.broker.config import BrokerConfig
from semel.broker.log import LogConfig
from semel.broker.raft import RaftConfig
from semel.client import config as client
from semel.controller.__main__ import main as controller_command
from semel.controller.config import ControllerConfig
from semel.protos.ids import GroupId, NodeId
from semel.protos.settings import SettingOption, documentation

NODES = [BrokerConfig, LogConfig, RaftConfig, ControllerConfig]
CONFIGS = [
    *NODES,
    *(kind for kind in vars(client).values() if dataclasses.is_dataclass(kind)),
]
UNITS = {
    "": 1,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "ms": 1,
    "s": 1_000,
    "min": 60_000,
    "h": 3_600_000,
    "day": 86_400_000,
    "days": 86_400_000,
}
NUMBER = re.compile(r"[Dd]efault:? (\d[\d,.]*\d|\d)(?: ?([KMG]iB|ms|s|min|h|days?)\b)?")


def documented(config: type) -> Iterator[tuple[str, Any, str]]:
    """Each field with its default and its documentation."""
    texts = documentation(config)
    for field in dataclasses.fields(config):
        if field.name in texts:
            yield field.name, field.default, texts[field.name]


def promised(text: str) -> float | None:
    """In the units of settings: milliseconds, bytes."""
    found = NUMBER.search(text)
    if found is None:
        return None
    return float(found[1].replace(",", "")) * UNITS[found[2] or ""]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.__name__)
def test_a_default_is_what_its_documentation_says(config: type) -> None:
    wrong = {
        name: (default, told)
        for name, default, text in documented(config)
        if type(default) in (int, float)
        and (told := promised(text)) is not None
        and told != default * (1_000 if name.endswith("_s") else 1)
    }
    assert wrong == {}


def test_defaults_are_found_in_the_documentation() -> None:
    assert promised("Default 512 MiB. Memory") == 512 << 20
    assert promised("Default 1.5 s") == 1_500
    assert promised("Default 7 days. Rows") == 7 * 86_400_000
    assert promised("Default: as it listens") is None
    told = [text for _, _, text in documented(BrokerConfig) if promised(text) is not None]
    assert len(told) > 20


@pytest.mark.parametrize("config", NODES, ids=lambda config: config.__name__)
def test_every_setting_of_a_node_is_documented_with_its_default(config: type) -> None:
    fields = [field for field in dataclasses.fields(config) if field.init]
    told = documentation(config)
    texts = {field.name: told.get(field.name, "") for field in fields}
    assert [field.name for field in fields if not texts[field.name]] == []
    optional = {
        field.name
        for field in fields
        if field.default is not dataclasses.MISSING
        or field.default_factory is not dataclasses.MISSING
    }
    optional |= {"members"} & set(texts)  # its flag may be left out
    assert {name for name, text in texts.items() if "Default" in text} == optional


def test_every_setting_of_a_controller_has_a_flag() -> None:
    flags = {option.name for option in controller_command.params if type(option) is SettingOption}
    assert flags == {field.name for field in dataclasses.fields(ControllerConfig) if field.init}


@pytest.mark.parametrize("command", [broker_command, controller_command])
def test_every_flag_of_a_setting_has_help_and_a_default(command: click.Command) -> None:
    flags = [option for option in command.params if isinstance(option, SettingOption)]
    assert len(flags) > 15
    assert [flag.name for flag in flags if not flag.help] == []
    open_ended = [flag.name for flag in flags if not (flag.shown_default or flag.is_flag)]
    assert open_ended == [flag.name for flag in flags if flag.required]


def test_the_flags_of_a_controller_name_its_defaults() -> None:
    defaults = {field.name: field.default for field in dataclasses.fields(ControllerConfig)}
    told = {
        str(option.name): found[1]
        for option in controller_command.params
        if isinstance(option, click.Option)
        and (found := re.search(r"\[default: (\d+)\]$", option.help or ""))
    }
    assert len(told) > 4
    assert told == {name: str(defaults[name]) for name in told}


def test_what_is_switched_off_with_zero_may_be_zero(tmp_path: Path) -> None:
    off = {
        name: 0
        for name, default, text in documented(BrokerConfig)
        if type(default) is int and re.search(r"\b0(:| for| switches)", text)
    }
    assert {"fetch_shared_bytes_max", "scrub_bytes_per_second"} <= set(off)
    members = {NodeId(1): "127.0.0.1:7171"}
    BrokerConfig(
        data=tmp_path,
        listen="127.0.0.1:7171",
        cluster_id="c",
        group_id=GroupId(1),
        node_id=NodeId(1),
        members=members,
        **off,  # type: ignore[arg-type]
    )
