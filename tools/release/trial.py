"""A wheel installed as users install it: the client alone, and with all extras of users.

How it works. Each kind gets an environment of its own, filled by pip with the versions that
`requirements/dev.txt` pins. Nothing of this tree or its environment is visible there.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tools.source_tree import ROOT

EXTRAS: Final = ("arrow", "broker", "celery", "hdfs", "kafka", "security", "spark", "web")
"""What users may add to the client."""
SERVERS_ONLY: Final = (
    *("caio", "rocksdict", "kazoo", "prometheus_client", "pysyncobj", "uvloop"),
    *("grpc_health", "starlette", "uvicorn"),
)
"""Packages that a client has no use for."""
INSTALLED_BYTES_MAX: Final = 150_000_000
"""Bytes on disk of a client without extras."""
MIB: Final = 1 << 20


class TrialFailed(Exception):
    """The wheel does not do what it should; the message says what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """A virtual environment with the wheel in it."""

    home: Path

    @property
    def python(self) -> Path:
        return self.home / "bin" / "python"

    def run(self, *arguments: str, timeout_s: float = 120) -> str:
        """The output of its Python. Raises TrialFailed."""
        done = subprocess.run(
            [str(self.python), *arguments],
            cwd=self.home,
            env={name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
        )
        if done.returncode:
            raise TrialFailed(f"{' '.join(arguments)}: {(done.stderr or done.stdout)[-2_000:]}")
        return done.stdout


def constraints(pins: str) -> str:
    """The versions of a file of pins, without their hashes, as constraints for pip."""
    lines = re.findall(r"^([A-Za-z0-9][^\s;\\]*==[^\s;\\]+)(\s*;[^\\\n]*)?", pins, re.M)
    return "".join(f"{name}{marker.rstrip()}\n" for name, marker in lines)


def install(wheel: Path, home: Path, extras: tuple[str, ...] = ()) -> Environment:
    """Makes an environment in `home` and installs the wheel. Raises TrialFailed."""
    venv.create(home, symlinks=True, with_pip=False)
    pins = home / "constraints.txt"
    pins.write_text(constraints((ROOT / "requirements" / "dev.txt").read_text()))
    made = Environment(home=home)
    wanted = f"semel[{','.join(extras)}] @ {wheel.as_uri()}" if extras else str(wheel)
    done = subprocess.run(
        [*_pip(made), "-c", str(pins), wanted],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise TrialFailed(f"pip cannot install {wanted}: {done.stderr.strip()[-2_000:]}")
    return made


def _pip(environment: Environment) -> list[str]:
    """The beginning of a command that installs into an environment without pip."""
    pip = [sys.executable, "-m", "pip", "--python", str(environment.python), "install"]
    return [*pip, "-q", "--disable-pip-version-check"]


def sizes(environment: Environment) -> dict[str, int]:
    """Bytes on disk of each directory and file of the environment's packages, largest first."""
    where = Path(
        environment.run("-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    )
    found = {
        entry.name: sum(path.stat().st_size for path in entry.rglob("*") if path.is_file())
        if entry.is_dir()
        else entry.stat().st_size
        for entry in where.iterdir()
    }
    return dict(sorted(found.items(), key=lambda item: -item[1]))


IMPORT: Final = """
import json, sys, time
began = time.process_time()
import semel.client
seconds = time.process_time() - began
print(json.dumps({"seconds": seconds, "modules": sorted(sys.modules)}))
"""


def imported(environment: Environment, times: int = 5) -> tuple[float, list[str]]:
    """CPU seconds that the import of the SDK takes, the least of several, and all modules that are
    loaded then. The first import, which compiles, does not count."""
    runs: list[dict[str, Any]] = [
        json.loads(environment.run("-c", IMPORT)) for _ in range(times + 1)
    ]
    return min(run["seconds"] for run in runs[1:]), runs[-1]["modules"]


CLUSTER: Final = """
import json, subprocess, sys, tempfile
from semel.client import connect
with tempfile.TemporaryDirectory() as data:
    up = subprocess.Popen(
        [sys.executable, "-m", "semel.console", "up", "--data", data, "--port", "0", "--json"],
        stdout=subprocess.PIPE, text=True)
    try:
        ready = json.loads(up.stdout.readline())
        with connect(ready["bootstrap"]) as client:
            client.admin.create_topic("orders", queues=2)
            with client.producer("trial") as producer:
                producer.send_many("orders", [b"%d" % n for n in range(1000)])
                producer.flush()
            with client.reader("orders", end="latest") as reader:
                found = sorted(int(message.value) for message in reader)
            assert found == list(range(1000)), len(found)
        done = subprocess.run(
            [sys.executable, "-m", "semel.console", "verify", "--exactly-once",
             "--bootstrap", ready["bootstrap"]], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        up.terminate()
        up.wait(30)
print("sent, read and verified")
"""


def run_cluster(environment: Environment) -> str:
    """Runs a cluster from the installed wheel. Raises TrialFailed."""
    return environment.run("-c", CLUSTER).strip()


def write_bill(environment: Environment, tools: Path, target: Path) -> int:
    """Writes what the environment consists of, in CycloneDX, with the program of another
    environment in `tools`; returns how many components there are. Raises TrialFailed."""
    if not tools.exists():
        venv.create(tools, symlinks=True, with_pip=False)
        done = subprocess.run(
            [
                *_pip(Environment(home=tools)),
                *("--require-hashes", "-r", str(ROOT / "requirements" / "release.txt")),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise TrialFailed(f"pip cannot install the tools: {done.stderr.strip()[-2_000:]}")
    Environment(home=tools).run(
        *("-m", "cyclonedx_py", "environment", "--output-reproducible", "--of", "JSON"),
        *("--pyproject", str(ROOT / "pyproject.toml"), "-o", str(target)),
        str(environment.python),
    )
    return len(json.loads(target.read_text(encoding="utf-8"))["components"])
