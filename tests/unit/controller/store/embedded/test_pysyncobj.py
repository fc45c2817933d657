"""The installed pysyncobj is the one that the store was written for, down to its private names."""

from __future__ import annotations

import ast
import importlib.metadata
import inspect
import re
import socket
import tomllib
from pathlib import Path

import pysyncobj.journal
import pysyncobj.node
import pysyncobj.pipe_notifier
import pysyncobj.serializer
import pysyncobj.syncobj
import pysyncobj.transport
import pytest

from semel.controller.store.embedded import consensus, dump, exposed

ROOT = Path(__file__).parents[5]
MODULES = (
    pysyncobj.syncobj,
    pysyncobj.transport,
    pysyncobj.journal,
    pysyncobj.node,
    pysyncobj.pipe_notifier,
)
SOURCES = [inspect.getsource(module) for module in MODULES]


def defined_names(source: str) -> set[str]:
    """What a module defines or sets on its objects, as it is called from outside."""
    found = set()
    for owner in ast.walk(ast.parse(source)):
        if isinstance(owner, ast.ClassDef):
            found.add(owner.name)
            for name in named(owner):
                private = name.startswith("__") and not name.endswith("__")
                found.add(f"_{owner.name.lstrip('_')}{name}" if private else name)
    return found


def named(tree: ast.AST) -> set[str]:
    """Attributes and functions that occur in a piece of code."""
    nodes = [*ast.walk(tree)]
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return attributes | {node.name for node in nodes if isinstance(node, ast.FunctionDef)}


PRIVATE = {
    name
    for source in SOURCES
    for name in defined_names(source)
    if name.startswith("_") and not name.startswith("__")
}


def test_it_is_pinned_to_the_version_that_is_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [one for extra in project["optional-dependencies"].values() for one in extra]
    assert f"pysyncobj=={importlib.metadata.version('pysyncobj')}" in wanted
    assert importlib.metadata.version("pysyncobj") == exposed.VERSION, (
        "another pysyncobj than the store was written for: compare what store/embedded/exposed.py "
        "uses of it with the new one's code, then change VERSION there"
    )


@pytest.mark.parametrize("name", exposed.PRIVATE_NAMES)
def test_private_name(name: str) -> None:
    installed = importlib.metadata.version("pysyncobj")
    assert name in PRIVATE, f"pysyncobj {installed} has no {name}; {exposed.VERSION} had it"


def test_the_list_of_private_names_is_whole() -> None:
    folder = Path(inspect.getfile(exposed)).parent
    used = {path.name: named(ast.parse(path.read_text())) & PRIVATE for path in folder.glob("*.py")}
    assert used.pop("exposed.py") == set(exposed.PRIVATE_NAMES)
    assert not any(used.values()), f"what is private belongs into exposed.py: {used}"


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
    ours = set(consensus.FsyncJournal.__dict__) | set(exposed.OwnedJournal.__dict__)
    assert abstract <= ours
    assert {"send", "destroy"} <= set(consensus.PeerTransport.__dict__)


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
