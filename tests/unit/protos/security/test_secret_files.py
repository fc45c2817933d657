"""A file that holds a secret is shown to its owner, or to one group by root."""

from __future__ import annotations

import os

import pytest

from semel.protos.security.secret_files import shown_to_others

OWN = 10_001


def file(mode: int, owner: int) -> os.stat_result:
    return os.stat_result((0o100000 | mode, 0, 0, 1, owner, 10_001, 0, 0, 0, 0))


@pytest.mark.parametrize(
    ("mode", "owner", "process", "shown"),
    [
        (0o600, OWN, OWN, False),
        (0o400, OWN, OWN, False),
        (0o640, OWN, OWN, True),
        (0o604, OWN, OWN, True),
        # As Kubernetes mounts a secret: root's, and readable by the pod's own group.
        (0o440, 0, OWN, False),
        (0o640, 0, OWN, False),
        (0o660, 0, OWN, True),
        (0o450, 0, OWN, True),
        (0o444, 0, OWN, True),
        (0o440, 0, 0, True),  # root needs no group
        (0o440, 7, OWN, True),
    ],
)
def test_a_secret_is_its_owner_s_or_one_of_root_s_for_one_group(
    monkeypatch: pytest.MonkeyPatch, mode: int, owner: int, process: int, shown: bool
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: process)
    assert shown_to_others(file(mode, owner)) is shown
