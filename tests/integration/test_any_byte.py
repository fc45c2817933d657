"""Damage of any one file of any one node is survived, by the node itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from semel.protos.errors import DataDirectoryError
from tests.kit.damage import KINDS, Wear


async def test_a_flipped_byte_of_every_kind_of_file(tmp_path: Path) -> None:
    """One node, damaged again and again; it ends with everything every time."""
    wear = Wear(tmp_path, seed=1)
    async with wear.group:
        await wear.fill()
        for damage in KINDS:
            try:
                await wear.hurt(damage)
            except (Exception, TimeoutError) as error:
                raise AssertionError(f"after damage of {damage.__name__}") from error


async def test_a_directory_of_nobody_is_refused(tmp_path: Path) -> None:
    """All copies of the identity: it is unknown whose vote and whose log this is."""
    wear = Wear(tmp_path, seed=1)
    async with wear.group:
        await wear.group.master()
        await wear.group.stop(2)
        for path in (tmp_path / "2").glob("IDENTITY*"):
            data = bytearray(path.read_bytes())
            for at in (3, len(data) // 2 + 3):
                data[at] ^= 1
            path.write_bytes(data)
        with pytest.raises(DataDirectoryError, match="IDENTITY is damaged"):
            await wear.group.start(2)
