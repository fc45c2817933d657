"""`./run` on machines that have little: which Python it takes, what it says, what it repeats."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ("sh", "dirname", "cat", "cksum", "sed", "date", "sleep", "tail", "env", "flock", "mkdir")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A copy of the tree with only what `./run` itself reads."""
    copy = tmp_path / "clone"
    (copy / "requirements").mkdir(parents=True)
    shutil.copy(ROOT / "run", copy / "run")
    shutil.copy(ROOT / "pyproject.toml", copy / "pyproject.toml")
    (copy / "requirements" / "dev.txt").write_text("")
    return copy


@pytest.fixture
def bin_directory(tmp_path: Path) -> Path:
    """A PATH of its own, without any Python."""
    directory = tmp_path / "bin"
    directory.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        if found:
            (directory / tool).symlink_to(found)
    return directory


def program(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def python_that(bin_directory: Path, name: str, refuses: str) -> Path:
    """An interpreter that works but fails every program with `refuses` in its arguments."""
    return program(
        bin_directory / name,
        f'#!/bin/sh\ncase "$*" in *"{refuses}"*) exit 1 ;; esac\nexec {sys.executable} "$@"\n',
    )


def run(
    clone: Path, bin_directory: Path, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/sh", str(clone / "run"), *arguments],
        env={"PATH": str(bin_directory), "HOME": os.environ.get("HOME", "/"), **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def test_alone_it_lists_its_commands_and_sets_nothing_up(clone: Path, bin_directory: Path) -> None:
    result = run(clone, bin_directory)
    assert result.returncode == 0
    for command in ("demo", "test", "semel", "check", "bench", "soak", "env"):
        assert f"\n  {command} " in result.stdout
    assert not (clone / ".venv").exists()


def test_an_unknown_command_is_an_error(clone: Path, bin_directory: Path) -> None:
    result = run(clone, bin_directory, "tset")
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == "error: no such command: tset"


def test_without_python_it_says_so_in_one_line(clone: Path, bin_directory: Path) -> None:
    result = run(clone, bin_directory, "env")
    assert result.returncode == 1
    assert result.stderr.splitlines() == [
        "error: Semel needs a Python 3.11 to 3.14: install one, or name one in SEMEL_PYTHON"
    ]


def test_an_old_python_and_a_dead_shim_are_passed_over(clone: Path, bin_directory: Path) -> None:
    program(bin_directory / "python3", "#!/bin/sh\nexit 1\n")
    program(bin_directory / "python3.13", "#!/bin/sh\necho 'no such version' >&2\nexit 127\n")
    program(bin_directory / "python3.12", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    result = run(clone, bin_directory, "env")
    assert "Semel needs a Python" not in result.stderr


def test_a_python_that_is_not_supported_is_refused_by_name(
    clone: Path, bin_directory: Path
) -> None:
    for version in ("3, 10, 1", "3, 15, 0"):
        other = f"import sys; sys.version_info = ({version}); exec(sys.argv.pop(1))"
        text = f'#!/bin/sh\nshift\nexec {sys.executable} -c "{other}" "$@"\n'
        chosen = program(bin_directory / "other", text)
        result = run(clone, bin_directory, "env", SEMEL_PYTHON=str(chosen))
        assert result.stderr.splitlines() == [
            f"error: SEMEL_PYTHON={chosen} is no Python that Semel runs on:"
            " name a Python 3.11 to 3.14"
        ]


def test_a_python_of_another_version_has_an_environment_of_its_own(
    clone: Path, bin_directory: Path
) -> None:
    """`.venv` stays the environment of the Python that was the first."""
    python = clone / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    program(python, "#!/bin/sh\necho 3.13.7\n")
    chosen = program(bin_directory / "other", "#!/bin/sh\necho 3.12.9\n")
    (clone / ".venv-3.12.9" / "bin").mkdir(parents=True)
    own = program(clone / ".venv-3.12.9" / "bin" / "python", "#!/bin/sh\n")
    (clone / ".venv-3.12.9" / "semel-stamp").write_text(stamp_of(clone))
    result = run(clone, bin_directory, "env", SEMEL_PYTHON=str(chosen))
    assert (result.stdout, result.stderr) == (f"{own}\n", "")


def test_the_tests_are_told_of_every_other_python_once(clone: Path, bin_directory: Path) -> None:
    """Whether it is on the PATH or pyenv's; one without an environment is told, too."""
    for directory in (".venv", ".venv-3.12.9"):
        (clone / directory / "bin").mkdir(parents=True)
        (clone / directory / "semel-stamp").write_text(stamp_of(clone))
    told = '*cpu_count*) echo 2 ;; -c*) echo 3.11.7 ;; *) echo "$SEMEL_TEST_PYTHONS" ;;'
    program(clone / ".venv" / "bin" / "python", f'#!/bin/sh\ncase "$*" in {told} esac\n')
    program(clone / ".venv-3.12.9" / "bin" / "python", "#!/bin/sh\n")
    program(bin_directory / "python3.11", "#!/bin/sh\necho 3.11.7\n")
    program(bin_directory / "python3.12", "#!/bin/sh\necho 3.12.9\n")
    for version in ("3.12.9", "3.13.1"):
        (clone / "pyenv" / "versions" / version / "bin").mkdir(parents=True)
        file = clone / "pyenv" / "versions" / version / "bin" / f"python{version[:4]}"
        program(
            file, f'#!/bin/sh\ncase "$2" in import\\ sys*) echo {version} ;; *) exit 1 ;; esac\n'
        )
    result = run(clone, bin_directory, "test", PYENV_ROOT=str(clone / "pyenv"), HOME="/no")
    assert result.stdout.splitlines() == [f"3.12.9 {clone}/.venv-3.12.9/bin/python", "3.13.1 "]
    assert "/python3.13 cannot make a virtual environment" in result.stderr


def test_the_processes_of_all_tests_keep_what_they_compile(
    clone: Path, bin_directory: Path
) -> None:
    """Containers of Python often set the variable, and thousands of processes start."""
    (clone / ".venv" / "bin").mkdir(parents=True)
    (clone / ".venv" / "semel-stamp").write_text(stamp_of(clone))
    told = "*cpu_count*) echo 2 ;; *) env ;;"
    program(clone / ".venv" / "bin" / "python", f'#!/bin/sh\ncase "$*" in {told} esac\n')
    result = run(clone, bin_directory, "test", HOME="/no", PYTHONDONTWRITEBYTECODE="1")
    assert "SEMEL_TEST_PYTHONS=" in result.stdout
    assert "PYTHONDONTWRITEBYTECODE" not in result.stdout


def test_where_no_environment_can_be_made_it_uses_what_is_there(
    clone: Path, bin_directory: Path
) -> None:
    python_that(bin_directory, "python3", "import ensurepip")
    python_that(bin_directory, "python3", "venv")
    (clone / "requirements" / "dev.txt").write_text("click==0.0.0 \\\n    --hash=sha256:00\n")
    refused = run(clone, bin_directory, "env")
    assert refused.returncode == 1
    assert len(refused.stderr.splitlines()) == 1
    assert "apt-get install python3-venv" in refused.stderr

    version = importlib.metadata.version("click")
    (clone / "requirements" / "dev.txt").write_text(f"click=={version} \\\n    --hash=sha256:00\n")
    served = run(clone, bin_directory, "env")
    assert (served.returncode, served.stdout) == (0, f"{bin_directory}/python3\n"), served.stderr


def test_a_failed_set_up_shows_its_output_and_is_tried_again(
    clone: Path, bin_directory: Path
) -> None:
    program(bin_directory / "python3", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (clone / "requirements" / "dev.txt").write_text(
        "no-such-file @ file:///no/such-1.0-py3-none-any.whl\n"
    )
    for _ in range(2):
        result = run(clone, bin_directory, "env")
        assert result.returncode == 1
        assert "/no/such-1.0" in result.stderr
        assert result.stderr.splitlines()[-1].startswith("error: installing the pinned packages")


def test_a_second_call_sets_nothing_up(clone: Path, bin_directory: Path) -> None:
    """An environment that was made from the same files, at the same place, is taken as it is."""
    python = clone / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    program(python, "#!/bin/sh\necho the kept one\n")
    (clone / ".venv" / "semel-stamp").write_text(stamp_of(clone))
    result = run(clone, bin_directory, "env")
    assert (result.returncode, result.stdout, result.stderr) == (0, f"{python}\n", "")
    assert run(clone, bin_directory, "semel", "up").stdout == "the kept one\n"
    (clone / "requirements" / "dev.txt").write_text("# changed\n")
    assert run(clone, bin_directory, "env").returncode == 1


def stamp_of(clone: Path) -> str:
    """The stamp of an environment that needs nothing."""
    return subprocess.run(
        [
            "/bin/sh",
            "-c",
            f"root={clone}; requirements=$root/requirements/dev.txt; {fingerprint()}",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def fingerprint() -> str:
    """The function of the script, and a call of it."""
    text = (ROOT / "run").read_text()
    start = text.index("fingerprint() {")
    return text[start : text.index("\n}\n", start) + 3] + "fingerprint\n"
