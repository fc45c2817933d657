"""Files can be opened when connections have taken every descriptor."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from semel.broker.log import Reserve

PROGRAM = """
import os, resource, sys
from pathlib import Path
from semel.broker.log import OsFiles, Reserve

directory, kept_back = Path(sys.argv[1]), int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
files = OsFiles(Reserve(kept_back))

def strangers():
    try:
        while True:
            os.open(os.devnull, os.O_RDONLY)
    except OSError as error:
        assert error.errno == 24

for number in range(100):
    strangers()
    file = files.open(directory / str(number), create=True)
    file.write([b"x"], 0)
    strangers()
    files.sync_directory(directory)
    strangers()
    file.close()
print("done")
"""


def test_a_file_can_be_opened_when_no_descriptor_is_left(tmp_path: Path) -> None:

    def run(kept_back: int) -> subprocess.CompletedProcess[str]:
        directory = tmp_path / str(kept_back)
        directory.mkdir()
        return subprocess.run(
            [sys.executable, "-c", PROGRAM, str(directory), str(kept_back)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    kept = run(3)
    assert kept.stdout == "done\n", kept.stderr
    bare = run(0)
    assert bare.returncode == 1
    assert "Too many open files" in bare.stderr


def test_a_reserve_gives_everything_back(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    reserve = Reserve(5)
    assert len(list(Path("/proc/self/fd").iterdir())) == before + 6
    descriptor = reserve.open(tmp_path / "a", os.O_RDWR | os.O_CREAT)
    reserve.close(descriptor)
    reserve.release()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
