"""Nodes of the fault matrix start quickly."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def programs_are_forked(forked_programs: None) -> None:
    """Each fault has a cluster of its own."""
