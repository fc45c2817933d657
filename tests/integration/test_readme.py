"""What the README shows works as it stands there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.kit.loading import semel
from tests.kit.up_process import UpProcess

README = Path(__file__).parents[2] / "README.md"


def test_the_commands_and_the_sample_of_the_readme(tmp_path: Path) -> None:
    text = README.read_text(encoding="utf-8")
    file = tmp_path / "FILE"
    file.write_bytes(b"one\ntwo\n")
    commands = re.findall(r"^    \./run semel ((?!up).*)$", text, re.M)
    assert len(commands) == 6
    [sample] = re.findall(r"```python\n(from semel.*?)```", text, re.S)
    with UpProcess(tmp_path / "cluster", "--brokers", "1") as up:
        for command in commands:
            words = shlex.split(command, comments=True)
            words = [str(file) if word == "FILE" else word for word in words]
            if words[0] == "consume":
                words.append("--until-end")
            if "--watch" in words:
                words.remove("--watch")  # it would look for ever
            done = semel(up.bootstrap, *words)
            assert done.returncode == 0, f"{words}: {done.stderr}"
        done = subprocess.run(
            [sys.executable, "-c", sample.replace("127.0.0.1:7070", up.bootstrap)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert "b'hello'" in done.stdout
    assert "b'one'" in done.stdout
