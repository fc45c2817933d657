"""Settings of a running node: shown, changed within bounds, refused; and read at each use."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import click
import pytest

from semel.broker.__main__ import main as broker
from semel.broker.config import CHANGEABLE as OF_BROKERS
from semel.controller.__main__ import main as controller
from semel.controller.config import CHANGEABLE as OF_CONTROLLERS
from semel.controller.config import ControllerConfig
from semel.protos.errors import InvalidRequest
from semel.protos.live_settings import Allowed, LiveSettings, SettingsService
from semel.protos.settings import SettingOption
from semel.protos.v1 import settings_pb2
from tools.source_tree import ROOT


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPart:
    segment_bytes: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    rate: int = 5
    percent: int = 50
    peers: tuple[str, ...] = ()
    on: bool = False
    where: Path | None = None
    log: LogPart = field(default_factory=LogPart)
    security: object = None


CHANGEABLE = {"rate": Allowed(0), "percent": Allowed(1, 100)}


def settings(config: Config) -> LiveSettings:
    return LiveSettings(config, CHANGEABLE)


def test_all_settings_are_shown_by_name() -> None:
    config = Config(rate=7, peers=("a", "b"), on=True)
    found = {one.name: one for one in settings(config).show()}
    assert list(found) == ["log.segment_bytes", "on", "peers", "percent", "rate", "where"]
    assert found["rate"] == settings_pb2.Setting(
        name="rate", value="7", default_value="5", started_value="7", changeable=True
    )
    assert (found["percent"].least, found["percent"].most) == (1, 100)
    texts = {name: one.value for name, one in found.items() if not one.changeable}
    assert texts == {"log.segment_bytes": "64", "on": "true", "peers": "a,b", "where": ""}
    with pytest.raises(InvalidRequest, match="no setting 'rats'"):
        settings(config).show(["rate", "rats"])


def test_a_change_counts_for_all_that_share_the_config_and_can_be_taken_back() -> None:
    config = Config(rate=7)
    live = settings(config)
    changed, before = live.change("rate", 9)
    assert (config.rate, changed.value, changed.started_value, before) == (9, "9", "7", "7")
    changed, before = live.change("rate", 9)
    assert (changed.value, before) == ("9", "9")
    changed, before = live.change("rate", None)
    assert (config.rate, changed.value, before) == (7, "7", "9")


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("rate", -1, "may be 0 and up, not -1"),
        ("percent", 0, "may be 1 to 100, not 0"),
        ("percent", 101, "may be 1 to 100, not 101"),
        ("on", 1, "counts from the start of a node on"),
        ("log.segment_bytes", 1, "counts from the start of a node on"),
        ("nothing", 1, "no setting 'nothing'"),
    ],
)
def test_what_makes_no_sense_is_refused(name: str, value: int, text: str) -> None:
    config = Config()
    with pytest.raises(InvalidRequest, match=text):
        settings(config).change(name, value)
    assert config == Config()


async def test_a_call_for_another_cluster_is_refused_and_callers_are_checked() -> None:
    checked: list[object] = []
    config = Config()
    service = SettingsService(settings(config), lambda: "c", checked.append)
    change = settings_pb2.ChangeSettingRequest(cluster_id="d", name="rate", value=1)
    with pytest.raises(InvalidRequest, match="belongs to cluster c"):
        await service.ChangeSetting(change, "who")
    change.cluster_id = "c"
    reply = await service.ChangeSetting(change, "who")
    assert (reply.setting.value, reply.before, checked) == ("1", "5", ["who"])
    change.reset = True
    assert (await service.ChangeSetting(change, "who")).setting.value == "5"
    show = settings_pb2.ShowSettingsRequest(cluster_id="c", names=["rate"])
    [shown] = (await service.ShowSettings(show, "who")).settings
    assert shown.name == "rate"


@pytest.mark.parametrize(
    ("command", "changeable"), [(broker, OF_BROKERS), (controller, OF_CONTROLLERS)]
)
def test_a_change_has_the_bounds_of_the_flag(
    command: click.Command, changeable: dict[str, Allowed]
) -> None:
    flags = {one.field: one for one in command.params if isinstance(one, SettingOption)}
    for name, allowed in changeable.items():
        kind = flags[name].type
        if isinstance(kind, click.IntRange):
            assert (kind.min, kind.max or 0) == (allowed.least, allowed.most), name
        else:
            assert kind is click.INT, name
            with pytest.raises(InvalidRequest):
                ControllerConfig(data=Path("x"), **{name: allowed.least - 1})  # type: ignore[arg-type]


def kept(source: str, names: set[str]) -> list[str]:
    """The reads of these settings that happen once: when a part is made, or before the loop of a
    function that goes on for ever."""
    return [
        f"line {node.lineno}: {node.attr}"
        for function in ast.walk(ast.parse(source))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in _once(function)
        if isinstance(node, ast.Attribute)
        and node.attr in names
        and ast.unparse(node.value).split(".")[-1].strip("_") == "config"
    ]


def _once(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.AST]:
    endless = any(
        isinstance(node, ast.While) and ast.unparse(node.test) == "True"
        for node in ast.walk(function)
    )
    if function.name not in ("__init__", "_open", "_serve", "_start") and not endless:
        return
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Lambda | ast.FunctionDef | ast.AsyncFunctionDef):
            continue  # it is called later
        if isinstance(node, ast.While) and endless:
            continue
        yield node
        waiting += ast.iter_child_nodes(node)


@pytest.mark.parametrize(
    ("part", "changeable"),
    [("broker/semel/broker", OF_BROKERS), ("controller/semel/controller", OF_CONTROLLERS)],
)
def test_what_can_be_changed_is_read_at_each_use(part: str, changeable: dict[str, Allowed]) -> None:
    found = {
        str(path.relative_to(ROOT)): lines
        for path in sorted((ROOT / part).rglob("*.py"))
        if (lines := kept(path.read_text(encoding="utf-8"), set(changeable)))
    }
    assert found == {}


def test_planted_reads_that_are_kept_are_found() -> None:
    source = """
class Part:
    def __init__(self, config):
        self._rate = config.rate
        self._later = lambda: config.rate
    async def run(self):
        pause = self._config.pause_ms
        while True:
            wait(self._config.pause_ms)
    def use(self):
        return self._config.rate
"""
    assert kept(source, {"rate", "pause_ms"}) == ["line 4: rate", "line 7: pause_ms"]
