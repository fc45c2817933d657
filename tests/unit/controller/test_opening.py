"""Which store a controller's settings ask for, and what they may not ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from semel.controller.__main__ import main
from semel.controller.config import ControllerConfig, split_zookeeper
from semel.controller.opening import open_store
from semel.controller.store import SqliteStore
from semel.controller.store.embedded import EmbeddedStore
from semel.protos.errors import DataDirectoryError, InvalidRequest

THREE = {1: "127.0.0.1:7070", 2: "127.0.0.1:7071", 3: "127.0.0.1:7072"}


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({}, "sqlite"),
        ({"peers": {1: "127.0.0.1:7070"}}, "sqlite"),
        ({"peers": THREE}, "embedded"),
        ({"metadata": "embedded"}, "embedded"),
        ({"metadata": "zookeeper://a:1,b:2/semel"}, "zookeeper"),
        ({"metadata": "zookeeper://a:1/semel", "peers": THREE}, "zookeeper"),
    ],
)
def test_the_number_of_controllers_chooses_unless_somebody_does(
    settings: dict[str, Any], kind: str
) -> None:
    assert ControllerConfig(data=Path(), **settings).metadata_kind == kind


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"peers": {1: "a:1", 2: "b:1"}}, "1, 3 or 5"),
        ({"peers": {0: "a:1", 1: "b:1", 2: "c:1"}}, "1, 3 or 5"),
        ({"peers": {2: "a:1", 3: "b:1", 4: "c:1"}}, "controller_id is 1"),
        ({"peers": {1: "a:1", 2: "b", 3: "c:1"}}, "HOST:PORT"),
        ({"peers": THREE, "metadata": "sqlite"}, "one controller"),
        ({"metadata": "etcd"}, "no place for metadata"),
        ({"metadata": "zookeeper://a:1"}, "CHROOT"),
        ({"metadata": "zookeeper://a/b"}, "HOST:PORT"),
        ({"metadata": "zookeeper://a:1,/b"}, "HOST:PORT"),
        ({"metadata": "zookeeper://a:99999/b"}, "HOST:PORT"),
        ({"metadata": "zookeeper:///b"}, "HOST:PORT"),
        ({"metadata": "zookeeper://a:1/"}, "CHROOT"),
        ({"metadata": "zookeeper://a:1//b"}, "CHROOT"),
        ({"metadata": "zookeeper://a:1/b/../c"}, "CHROOT"),
        ({"metadata": "zookeeper://a:1/b\0"}, "CHROOT"),
        ({"metadata": "zookeeper://user:secret@a:1/b"}, "use metadata_auth"),
        ({"metadata_auth": Path("file")}, "for ZooKeeper, not for sqlite"),
    ],
)
def test_senseless_groups_and_places_are_refused(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidRequest, match=match) as caught:
        ControllerConfig(data=Path(), **settings)
    assert "secret" not in caught.value.message


def test_a_place_in_zookeeper_is_taken_apart() -> None:
    assert split_zookeeper("zookeeper://a:1,b:2/x/y/") == (("a:1", "b:2"), "/x/y")


@pytest.mark.parametrize("content", [None, "", "user", "user:", ":password", "a:b\nc:d"])
async def test_a_file_without_a_password_is_refused(tmp_path: Path, content: str | None) -> None:
    secret = tmp_path / "secret"
    if content is not None:
        secret.write_text(content)
    config = ControllerConfig(
        data=tmp_path, metadata="zookeeper://127.0.0.1:1/semel", metadata_auth=secret
    )
    with pytest.raises(InvalidRequest, match="metadata_auth"):
        await open_store(config)


async def test_a_directory_of_the_other_kind_is_not_begun_anew(tmp_path: Path) -> None:
    alone = ControllerConfig(data=tmp_path / "alone")
    store = await open_store(alone)
    assert isinstance(store, SqliteStore)
    await store.close()
    with pytest.raises(DataDirectoryError, match="alone"):
        await open_store(ControllerConfig(data=tmp_path / "alone", metadata="embedded"))

    replicated = ControllerConfig(data=tmp_path / "replicated", metadata="embedded")
    other = await open_store(replicated)
    assert isinstance(other, EmbeddedStore)
    await other.close()
    with pytest.raises(DataDirectoryError, match="replicates"):
        await open_store(ControllerConfig(data=tmp_path / "replicated"))


def test_peers_are_told_as_numbers_and_addresses(tmp_path: Path) -> None:
    for text in ("1", "x=a:1", "1=a:1,2"):
        result = CliRunner().invoke(main, ["--data", str(tmp_path), "--peers", text])
        assert result.exit_code == 2, text
        assert "NUMBER=HOST:PORT" in result.output
