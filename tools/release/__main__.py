"""`python -m tools.release check|build|try|tag`: the steps of a release (docs/releasing.md).

Each step says what it did and ends with status 1 at the first thing that is wrong. All may be
repeated.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from tools.release.artifacts import DIST, SUMS, BuildFailed, build, write_sums
from tools.release.facts import RELEASES, Tree, problems
from tools.release.trial import (
    EXTRAS,
    INSTALLED_BYTES_MAX,
    MIB,
    SERVERS_ONLY,
    TrialFailed,
    imported,
    install,
    run_cluster,
    sizes,
    write_bill,
)
from tools.source_tree import ROOT

LOGS = ROOT / "tests" / "fixtures" / "logs"


def git(*arguments: str) -> str:
    """The output of git in this tree."""
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def tags() -> dict[str, str]:
    """The commit of each tag."""
    listed = git("tag", "--list", "--format=%(refname:strip=2) %(*objectname) %(objectname)")
    return {line.split()[0]: line.split()[1] for line in listed.splitlines()}


def tree() -> Tree:
    """This tree, as it would be released."""
    return Tree(
        pyproject=(ROOT / "pyproject.toml").read_text(encoding="utf-8"),
        changelog=(ROOT / "CHANGELOG.md").read_text(encoding="utf-8"),
        run=(ROOT / "run").read_text(encoding="utf-8"),
        recorded=[path.name for path in LOGS.iterdir()] if LOGS.exists() else [],
        changed=[line[3:] for line in git("status", "--porcelain").splitlines()],
        tags=tags(),
        released=tomllib.loads((ROOT / RELEASES).read_text(encoding="utf-8")),
    )


def check() -> int:
    """Says what would stop a release; generated files are looked at, too."""
    found = problems(tree())
    for command in (["protos/generate.py"], ["-m", "tools.reference"], ["-m", "tools.metrics"]):
        done = subprocess.run(
            [sys.executable, *command, "--check"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            found.append((done.stderr or done.stdout).strip() or f"{command} fails")
    for problem in found:
        print(f"error: {problem}", file=sys.stderr)
    if not found:
        print(f"{tree().version} can be released from {git('rev-parse', '--short', 'HEAD')}")
    return 1 if found else 0


def build_all() -> int:
    """Makes dist/ anew from the commit."""
    if DIST.exists():
        shutil.rmtree(DIST)
    for made in build("HEAD", DIST):
        print(f"{made.relative_to(ROOT)}: {made.stat().st_size:,} bytes")
    return 0


def try_all() -> int:
    """Installs what is in dist/, runs it, and adds the bill of materials to it."""
    wheels = list(DIST.glob("*.whl"))
    if len(wheels) != 1:
        print("error: build first: python -m tools.release build", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="semel-release-") as name:
        client = install(wheels[0], Path(name) / "client")
        seconds, modules = imported(client)
        unwanted = {*SERVERS_ONLY, "pyarrow"}
        wrong = sorted(unwanted & {module.partition(".")[0] for module in modules})
        listed = sizes(client)
        wrong += sorted(unwanted & listed.keys())
        if wrong:
            raise TrialFailed(f"the client alone has {', '.join(wrong)}")
        if sum(listed.values()) > INSTALLED_BYTES_MAX:
            raise TrialFailed(f"the client alone takes {sum(listed.values()) / MIB:.0f} MiB")
        print(
            f"client alone: {sum(listed.values()) / MIB:.0f} MiB, import of semel.client"
            f" {seconds:.2f} s of CPU, {len(modules)} modules"
        )
        for package, size in list(listed.items())[:6]:
            print(f"  {package}: {size / MIB:.1f} MiB")
        whole = install(wheels[0], Path(name) / "whole", EXTRAS)
        print(f"with {', '.join(EXTRAS)}: {run_cluster(whole)}")
        bill = DIST / f"semel-{tree().version}.cdx.json"
        count = write_bill(whole, Path(name) / "tools", bill)
        print(f"{bill.relative_to(ROOT)}: {count} components")
    write_sums(DIST)
    return 0


def tag() -> int:
    """Sets the tag, once `check` finds nothing and dist/ is whole and of this commit."""
    if check():
        return 1
    version = tree().version
    wanted = {f"semel-{version}-py3-none-any.whl", f"semel-{version}.tar.gz"}
    wanted |= {f"semel-{version}.cdx.json", SUMS}
    missing = sorted(wanted - {path.name for path in DIST.glob("*")})
    if missing:
        print(f"error: dist/ lacks {', '.join(missing)}: build, then try", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="semel-again-") as name:
        for made in build("HEAD", Path(name)):
            if made.read_bytes() != (DIST / made.name).read_bytes():
                print(f"error: dist/{made.name} is of another commit", file=sys.stderr)
                return 1
    git("tag", "-a", f"v{version}", "-m", f"Semel {version}")
    print(f"v{version} is set; push it with `git push origin v{version}`, and add to {RELEASES}:")
    print(f'"v{version}" = "{git("rev-parse", "HEAD")}"')
    return 0


STEPS = {"check": check, "build": build_all, "try": try_all, "tag": tag}


def main() -> int:
    """Runs one step; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("step", choices=STEPS)
    try:
        return STEPS[parser.parse_args().step]()
    except (BuildFailed, TrialFailed) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
