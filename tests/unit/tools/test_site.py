"""Links of the repository's pages become links of the site, and the page of the API names exports
that exist."""

from __future__ import annotations

import importlib
import re

import pytest

import semel.client
from tools import site


@pytest.mark.parametrize(
    ("source", "text", "expected"),
    [
        ("docs/client.md", "[a](spark.md#b)", "[a](spark.md#b)"),
        ("docs/client.md", "[a](#b) [c](https://example.org)", "[a](#b) [c](https://example.org)"),
        ("README.md", "[a](docs/client.md)", "[a](client.md)"),
        ("README.md", "![a](docs/pictures/beside.svg)", "![a](pictures/beside.svg)"),
        ("docs/tour.md", "[`a:b`](../client/semel/client/__init__.py)", "`a:b`"),
        ("docs/tour.md", "[a](../SECURITY.md)", "[a](security-policy.md)"),
        ("docs/decisions/tiers.md", "[a](../../CHANGELOG.md)", "[a](../changelog.md)"),
        ("README.md", "[a](docs/formats/)", "[a](formats/README.md)"),
        ("docs/cookbook.md", "[a](../examples/README.md)", "[a](examples.md)"),
        ("docs/cookbook.md", "[a](../examples/reminders.py)", "a"),
    ],
)
def test_links_lead_to_pages_of_the_site(source: str, text: str, expected: str) -> None:
    assert site.site_links(text, source) == expected


def test_the_page_of_the_api_names_every_export_where_it_is() -> None:
    page = site.api_page()
    paths = re.findall(r"^::: (\S+)$", page, re.M)
    found = set()
    for path in paths:
        module, _, name = path.rpartition(".")
        found.add(getattr(importlib.import_module(module), name))
    for name in semel.client.__all__:
        exported = getattr(semel.client, name)
        if hasattr(exported, "__module__") and name != "SemelError":
            assert exported in found, name
    assert len(paths) == len(set(paths))
