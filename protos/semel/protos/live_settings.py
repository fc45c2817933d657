"""The settings of a running node: what they are, and changes of those that need no restart.

How it works. A component's settings are one frozen dataclass, which all its parts share. Its module
names those that are read each time they are used, with the values they may have. `LiveSettings`
alone writes into the dataclass, and only these, so that a change counts from the next use on.
Everything else was used up when the node started, and is refused with the advice to restart it. A
change is not stored: the next start takes flags, environment and file as ever.

Invariant: a setting that can be changed is read nowhere at the start of a part and kept
(`tests/unit/protos/test_live_settings.py` looks at the sources).

Not here: what the settings mean (each component's `config.py`), their flags (`settings.py`).
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final

import grpc.aio

from semel.protos.errors import InvalidRequest
from semel.protos.v1 import settings_pb2, settings_pb2_grpc

logger = logging.getLogger(__name__)

HIDDEN: Final = ("security",)
"""Fields that are no settings: they are made of others."""


@dataclasses.dataclass(frozen=True, slots=True)
class Allowed:
    """The whole numbers that a setting may be changed to."""

    least: int = 1
    most: int = 0
    """0: there is no greatest."""

    def __str__(self) -> str:
        return f"{self.least:,} to {self.most:,}" if self.most else f"{self.least:,} and up"

    def __contains__(self, value: int) -> bool:
        return self.least <= value and not (self.most and value > self.most)


class LiveSettings:
    """The settings of one node."""

    def __init__(self, config: Any, changeable: Mapping[str, Allowed]) -> None:
        """`config` is the dataclass that the node's parts share."""
        self._config = config
        self._changeable = changeable
        self._started = {name: getattr(config, name) for name in changeable}

    def show(self, names: Collection[str] = ()) -> list[settings_pb2.Setting]:
        """The settings of these names, by name; all without any. Raises InvalidRequest."""
        found = {setting.name: setting for setting in self._all()}
        unknown = sorted(set(names) - found.keys())
        if unknown:
            raise InvalidRequest(f"there is no setting {unknown[0]!r}")
        return [found[name] for name in sorted(names or found)]

    def change(self, name: str, value: int | None) -> tuple[settings_pb2.Setting, str]:
        """Changes a setting, None to what the node was started with; returns it and the value
        before. Raises InvalidRequest."""
        allowed = self._changeable.get(name)
        if allowed is None:
            self.show([name])
            raise InvalidRequest(
                f"{name} counts from the start of a node on: set it in the node's file, flags or"
                " environment, and restart it (`semel cluster restart --rolling`)"
            )
        before = getattr(self._config, name)
        wanted = self._started[name] if value is None else value
        if value is not None and value not in allowed:
            raise InvalidRequest(f"{name} may be {allowed}, not {value:,}")
        if wanted != before:
            object.__setattr__(self._config, name, wanted)
            logger.warning("setting changed name=%s from=%s to=%s", name, before, wanted)
        return self.show([name])[0], str(before)

    def _all(self) -> Iterator[settings_pb2.Setting]:
        yield from self._of(self._config, "")

    def _of(self, config: Any, prefix: str) -> Iterator[settings_pb2.Setting]:
        for field in dataclasses.fields(config):
            name, value = prefix + field.name, getattr(config, field.name)
            if field.name in HIDDEN:
                continue
            if dataclasses.is_dataclass(value):
                yield from self._of(value, f"{field.name}.")
                continue
            allowed = self._changeable.get(name)
            yield settings_pb2.Setting(
                name=name,
                value=_text(value),
                default_value=_text(_default(field)),
                started_value=_text(self._started.get(name, value)),
                changeable=allowed is not None,
                least=0 if allowed is None else allowed.least,
                most=0 if allowed is None else allowed.most,
            )


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None


def _text(value: Any) -> str:
    """A value as people read it, empty for none."""
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return ",".join(f"{key}={one}" for key, one in value.items())
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


class SettingsService(settings_pb2_grpc.SettingsServicer):
    """Serves semel.protos.v1.Settings."""

    def __init__(
        self,
        settings: LiveSettings,
        cluster_id: Callable[[], str],
        check: Callable[[object], None] = lambda context: None,
    ) -> None:
        """`check` raises PermissionDenied for a caller whom nobody else has checked."""
        self._settings = settings
        self._cluster_id = cluster_id
        self._check = check

    async def ShowSettings(  # noqa: N802
        self, request: settings_pb2.ShowSettingsRequest, context: object
    ) -> settings_pb2.ShowSettingsReply:
        self._check_request(request.cluster_id, context)
        return settings_pb2.ShowSettingsReply(settings=self._settings.show(request.names))

    async def ChangeSetting(  # noqa: N802
        self, request: settings_pb2.ChangeSettingRequest, context: object
    ) -> settings_pb2.ChangeSettingReply:
        self._check_request(request.cluster_id, context)
        value = None if request.reset else request.value
        setting, before = self._settings.change(request.name, value)
        return settings_pb2.ChangeSettingReply(setting=setting, before=before)

    def _check_request(self, cluster_id: str, context: object) -> None:
        if cluster_id != self._cluster_id():
            raise InvalidRequest(
                f"this node belongs to cluster {self._cluster_id()}, the call is for cluster"
                f" {cluster_id}"
            )
        self._check(context)


def serve_settings(
    server: grpc.aio.Server,
    config: Any,
    changeable: Mapping[str, Allowed],
    cluster_id: Callable[[], str],
    check: Callable[[object], None] = lambda context: None,
) -> None:
    """Has a node's server show its settings, and change those of `changeable`."""
    service = SettingsService(LiveSettings(config, changeable), cluster_id, check)
    settings_pb2_grpc.add_SettingsServicer_to_server(service, server)
