"""What the judges in Go share: modules from the Go module proxy that are pinned, and the verdicts
in what `go test -json` prints."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.kit.maven import Missing
from tests.kit.verdicts import Outcome, Verdict

_TEST: Final = re.compile(r"func (Test\w+)\(\w+ \*testing\.T\)")
_SAID: Final = re.compile(r"(?:\w+_test\.go:\d+|Error|panic): *(.*)")
"""What a line of a failure begins with. The first one of testify has no words."""
_ACTIONS: Final = {"pass": Outcome.PASSED, "fail": Outcome.FAILED, "skip": Outcome.LEFT_OUT}


@dataclass(frozen=True, slots=True)
class Module:
    """A module of Go, and its checksum as go.sum has it."""

    path: str
    version: str
    digest: str


class Go:
    """Go's own command, in a module that is made for the judge."""

    def __init__(self, place: Path, environment: Mapping[str, str] | None = None) -> None:
        """Makes the module in an empty directory. `environment` is added to that of this process.
        Raises Missing."""
        program = shutil.which("go")
        if program is None:
            raise Missing(
                "tests in Go need it, and there is none on the PATH: install it (Debian: apt-get"
                " install golang-go)"
            )
        self._program = program
        self._place = place
        self.environment = {**os.environ, "GOFLAGS": "-mod=mod", **(environment or {})}
        place.mkdir(exist_ok=True)
        self.call("mod", "init", "judges.test")

    def call(self, *arguments: str) -> str:
        """Runs a command of it and returns what it prints. Raises Missing."""
        done = subprocess.run(
            [self._program, *arguments],
            cwd=self._place,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["it failed"])[-1]
            raise Missing(f"go {' '.join(arguments)}: {said}")
        return done.stdout

    def get(self, module: Module) -> Path:
        """Gets a module that is pinned, as one that this one needs; returns its directory. Raises
        Missing."""
        wanted = f"{module.path}@{module.version}"
        self.call("get", wanted)
        found = json.loads(self.call("mod", "download", "-json", wanted))
        if found["Sum"] != module.digest:
            raise Missing(f"{module.path} {module.version} is not what is pinned: {found['Sum']}")
        return Path(found["Dir"])

    def test(
        self, judge: str, package: str, tests: Sequence[str], *flags: str
    ) -> Iterator[Verdict]:
        """Runs tests of a package, and yields their verdicts once all are through."""
        command = [self._program, "test", "-json", "-count=1", *flags]
        with subprocess.Popen(
            [*command, f"-run=^({'|'.join(tests)})$", package],
            cwd=self._place,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            yield from verdicts_of(judge, process.stdout, tests)

    def test_alone(
        self, judge: str, package: Path, tests: Sequence[str], *, tags: str, seconds_max: int
    ) -> Iterator[Verdict]:
        """Runs each test of a package in a process of its own, whose time is limited, so that one
        that hangs takes no other one with it. Raises Missing."""
        program = self._place / "package.test"
        self.call("test", "-c", f"-tags={tags}", "-o", str(program), str(package))
        for name in tests:
            flags = ["-test.v=test2json", f"-test.timeout={seconds_max}s", f"-test.run=^{name}$"]
            done = subprocess.run(
                [self._program, "tool", "test2json", "-t", program, *flags],
                cwd=package,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                text=True,
                check=False,
            )
            yield from verdicts_of(judge, done.stdout.splitlines(), [name])


def functions_of(file: Path) -> Iterator[tuple[str, str]]:
    """The names of the tests in a file of Go, and the text of each."""
    for part in re.split(r"^(?=func )", file.read_text(encoding="utf-8"), flags=re.M):
        if test := _TEST.match(part):
            yield test[1], part


def verdicts_of(judge: str, lines: Iterable[str], tests: Sequence[str]) -> Iterator[Verdict]:
    """The verdicts in what `go test -json` prints: of each test, or of its parts where it has
    some. A test that came to no end has failed."""
    outcomes: dict[str, Outcome] = {}
    said: dict[str, str] = {}
    for line in lines:
        if not line.startswith("{"):
            continue
        event = json.loads(line)
        name = event.get("Test")
        if name is None:
            continue
        if event["Action"] == "output":
            text = event["Output"].strip()
            words = said.get(name, "")
            if words.endswith(":"):
                said[name] = f"{words} {text}"
            elif not words and (found := _SAID.match(text)):
                said[name] = found[1].strip()
        elif event["Action"] in _ACTIONS:
            outcomes[name] = _ACTIONS[event["Action"]]
    parents = {name.rpartition("/")[0] for name in outcomes}
    for name in tests:
        outcomes.setdefault(name, Outcome.FAILED)
    for name in sorted(outcomes):
        alone = name not in parents
        broken = outcomes[name] is Outcome.FAILED and not any(
            outcomes[other] is Outcome.FAILED for other in outcomes if other.startswith(f"{name}/")
        )
        if alone or broken:
            words = said.get(name, "") if outcomes[name] is not Outcome.PASSED else ""
            yield Verdict(judge, name, outcomes[name], words)
