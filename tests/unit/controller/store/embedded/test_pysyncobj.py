"""The installed pysyncobj is the one that the store was written for, down to its private names."""

from __future__ import annotations

import importlib.metadata
import inspect
import re
import socket
import tomllib
from pathlib import Path

import pysyncobj.journal
import pysyncobj.pipe_notifier
import pysyncobj.serializer
import pysyncobj.syncobj
import pysyncobj.transport
import pytest

from semel.controller.store.embedded import dump, exposed, node

ROOT = Path(__file__).parents[5]
SOURCES = [
    inspect.getsource(module)
    for module in (pysyncobj.syncobj, pysyncobj.transport, pysyncobj.pipe_notifier)
]


def test_it_is_pinned_to_the_version_that_is_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [one for extra in project["optional-dependencies"].values() for one in extra]
    assert f"pysyncobj=={importlib.metadata.version('pysyncobj')}" in wanted
    assert importlib.metadata.version("pysyncobj") == "0.3.17"


@pytest.mark.parametrize("name", exposed.PRIVATE_NAMES)
def test_private_name(name: str) -> None:
    bare = re.sub(r"^_[A-Za-z]+(__)", r"\1", name)
    found = [source for source in SOURCES if re.search(rf"\bself\.{bare}\b", source)]
    assert found, f"{name} is gone"


def test_the_list_of_private_names_is_whole() -> None:
    folder = Path(inspect.getfile(exposed)).parent
    used = set()
    for path in folder.glob("*.py"):
        text = path.read_text()
        names = re.findall(r"_[A-Z][A-Za-z]+__[A-Za-z]+|\._on(?:Readonly)?Node\w+", text)
        if path.name not in ("exposed.py", "node.py"):
            assert names == []
        used |= {name.removeprefix(".") for name in names}
    assert used == set(exposed.PRIVATE_NAMES)


def test_importing_it_leaves_the_socket_module_as_it_was() -> None:
    assert socket.inet_ntop(socket.AF_INET6, bytes(15) + b"\1") == "::1"


def test_what_is_replaced_in_the_module_is_there() -> None:
    source = SOURCES[0]
    assert "self.__raftLog = createJournal(self.__conf.journalFile)" in source
    assert "monotonicTime()" in source
    assert "random.random()" in source
    for name in ("createJournal", "monotonicTime", "random"):
        assert hasattr(pysyncobj.syncobj, name)


def methods(kind: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind, inspect.isfunction)}


def test_our_parts_have_all_methods_of_those_in_whose_place_they_stand() -> None:
    theirs = {name for name in methods(pysyncobj.serializer.Serializer) if "__" not in name}
    assert theirs
    assert theirs <= methods(dump.Dumps)
    abstract = {
        name
        for name, method in inspect.getmembers(pysyncobj.journal.Journal, inspect.isfunction)
        if "NotImplementedError" in inspect.getsource(method)
    }
    assert abstract <= set(node.FsyncJournal.__dict__)
    assert {"send", "destroy"} <= set(node.PeerTransport.__dict__)


def test_every_message_that_it_sends_is_known() -> None:
    sent = set(re.findall(r"'type': '(\w+)'", SOURCES[0]))
    assert sent == {
        "append_entries",
        "apply_command",
        "next_node_idx",
        "request_vote",
        "response_vote",
        "apply_command_response",  # answers requests with an id; ours have none
        "timeout_now",  # a transfer that nobody asks for
    }
