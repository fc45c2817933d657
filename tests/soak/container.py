"""The image, really built, and a broker group run from it: `./run soak container`.

How it works. debootstrap makes a root of Debian packages with Python, which becomes the base image;
buildah builds `deploy/container/Containerfile` on it as it is, with the wheel of the commit (HEAD).
The image's root is then mounted, and each container is a chroot into it, with namespaces of its own
for mounts and processes: the root read-only, nothing writable but its data and /tmp, the user of
the image without any capability, its program as process 1, and the environment that the image sets.
A controller and three brokers start, the health check of the image is asked, messages are sent and
read by the console from the same image, a master is killed, everything is proven by `semel verify`,
and all programs end with the image's own signal.

It needs root, Debian packages (`apt-get update && apt-get install buildah debootstrap`), a kernel
that allows mounts, and a package index.

Limits: containers share the network of this machine, so each has an address of its own in 127/8. No
Docker, Podman or Kubernetes ran the image.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.kit.waiting import until
from tools.release.artifacts import build, commit_tree

PROGRAMS: Final = ("buildah", "debootstrap", "unshare", "setpriv", "chroot")
PACKAGES: Final = "ca-certificates,python3,python3-pip,python3-venv"
BASE: Final = "localhost/semel-base"
IMAGE: Final = "localhost/semel"
SIZE_MAX: Final = 520 << 20
"""Bytes that the image may add to its base."""
CA: Final = Path("/etc/ssl/certs/ca-certificates.crt")
MESSAGES: Final = 1_000
ENTER: Final = """
set -eu
root=$1 data=$2
shift 2
mount --make-rprivate /
mount --bind "$root" "$root"
mount --bind "$data" "$root/var/lib/semel"
mount -t tmpfs -o size=16m tmpfs "$root/tmp"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -o remount,bind,ro "$root"
exec chroot "$root" setpriv --reuid=10001 --regid=10001 --clear-groups --no-new-privs \\
    --inh-caps=-all --bounding-set=-all -- "$@"
"""


def run(*command: str) -> str:
    """The output of a program. Raises SystemExit with the end of what it said."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr + done.stdout)[-3_000:]
        raise SystemExit(f"error: {' '.join(command)[:200]} ends with {done.returncode}: {said}")
    return done.stdout


class Store:
    """Buildah's images in a directory of their own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._flags = ["--storage-driver", "vfs", "--root", str(directory / "store")]
        self._flags += ["--runroot", str(directory / "run")]

    def __call__(self, verb: str, *arguments: str) -> str:
        return run("buildah", *self._flags, verb, *arguments).strip()

    def make_base(self, suite: str) -> None:
        """An image of Debian packages, which trusts what this machine trusts."""
        root = self._directory / "debian"
        print(f"a root of Debian packages ({suite})", flush=True)
        run("debootstrap", "--variant=minbase", f"--include={PACKAGES}", suite, str(root))
        shutil.copy(CA, root / "etc" / "ssl" / "certs" / CA.name)
        (root / "etc" / "resolv.conf").unlink(missing_ok=True)
        shutil.rmtree(root / "var" / "cache" / "apt")
        shutil.rmtree(root / "var" / "lib" / "apt" / "lists")
        working = self("from", "scratch")
        self("add", "--quiet", working, str(root), "/")
        self("config", "--env", "PATH=/usr/bin:/bin:/usr/sbin:/sbin", working)
        self("config", "--env", f"PIP_CERT={CA}", "--cmd", "python3", working)
        self("commit", "--quiet", working, BASE)
        self("rm", working)

    def make_image(self, index: str) -> dict[str, Any]:
        """The image of the commit; returns its configuration."""
        with commit_tree("HEAD") as context:
            build("HEAD", context / "dist")
            print("the image", flush=True)
            self(
                *("build", "--isolation", "chroot", "--format", "docker", "--pull=never"),
                *("--build-arg", f"BASE={BASE}"),
                *(("--build-arg", f"PIP_INDEX_URL={index}") if index else ()),
                *("-f", str(context / "deploy" / "container" / "Containerfile")),
                *("-t", IMAGE, str(context)),
            )
        found: dict[str, Any] = json.loads(self("inspect", "--type", "image", IMAGE))["Docker"]
        return dict(found["config"])

    def mounted(self, image: str) -> Path:
        """The root of an image, as a container has it."""
        return Path(self("mount", self("from", "--pull=never", image)))


def size_of(root: Path) -> int:
    """Bytes of all files."""
    return int(run("du", "--summarize", "--bytes", str(root)).split()[0])


@dataclass(slots=True)
class Container:
    """One program of the image as process 1 of a chroot."""

    root: Path
    data: Path
    config: dict[str, Any]
    environment: dict[str, str]
    process: subprocess.Popen[bytes] | None = None

    def command(self, *words: str) -> list[str]:
        inside = ["env", "-i", *self.config["Env"]]
        inside += [f"{name}={value}" for name, value in self.environment.items()]
        # (--kill-child would be in vain: a process that changes its user forgets that.)
        unshare = ["unshare", "--mount", "--pid", "--fork"]
        return [*unshare, "sh", "-c", ENTER, "sh", str(self.root), str(self.data), *inside, *words]

    def start(self, *words: str) -> None:
        """Starts what the image starts, with these arguments."""
        self.data.mkdir(exist_ok=True)
        os.chown(self.data, 10_001, 10_001)
        with self.data.with_suffix(".log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command(*self.config["Entrypoint"], *words),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def call(self, *words: str, within_s: float = 120) -> subprocess.CompletedProcess[str]:
        """Runs one program of the image to its end."""
        self.data.mkdir(exist_ok=True)
        os.chown(self.data, 10_001, 10_001)
        return subprocess.run(
            self.command(*words), capture_output=True, text=True, check=False, timeout=within_s
        )

    def is_healthy(self) -> bool:
        """What the health check of the image says."""
        kind, *check = self.config["Healthcheck"]["Test"]
        assert kind == "CMD", kind
        return self.call(*check).returncode == 0

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to process 1 of the container."""
        assert self.process is not None
        for inner in children(self.process.pid):
            os.kill(inner, number)

    def stop(self) -> int:
        """Ends the program by the signal that the image names; returns its status."""
        assert self.process is not None
        self.send(signal.Signals[self.config["StopSignal"]])
        return self.process.wait(60)

    def kill(self) -> None:
        """Ends it at once."""
        self.send(signal.SIGKILL)
        assert self.process is not None
        self.process.wait(60)


def children(process: int) -> list[int]:
    """Numbers of a process's children."""
    text = Path(f"/proc/{process}/task/{process}/children").read_text()
    return [int(number) for number in text.split()]


def is_ready(address: str) -> bool:
    """Whether `/readyz` says so."""
    try:
        with urllib.request.urlopen(f"http://{address}:9100/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


class Cluster:
    """A controller and three brokers, each a container."""

    def __init__(self, root: Path, directory: Path, config: dict[str, Any]) -> None:
        self.root, self.directory, self.config = root, directory, config
        self.controllers = f"{self.address(0)}:7070"
        self.made: list[Container] = []
        self.containers = {number: self.container(number) for number in range(4)}

    @staticmethod
    def address(number: int) -> str:
        return f"127.0.77.{10 + number}"

    def container(self, number: int) -> Container:
        address = self.address(number)
        environment = {
            "SEMEL_CONTROLLER_LISTEN": f"{address}:7070",
            "SEMEL_BROKER_LISTEN": f"{address}:7171",
            "SEMEL_HEALTH_URL": f"http://{address}:9100/livez",
        }
        self.made.append(
            Container(self.root, self.directory / f"node-{number}", self.config, environment)
        )
        return self.made[-1]

    def start(self, number: int) -> None:
        if number == 0:
            self.containers[0].start("controller", "--cluster-id=image")
            return
        members = [f"--member={each}={self.address(each)}:7171" for each in (1, 2, 3)]
        flags = ["--cluster-id=image", "--group=1", f"--node={number}"]
        flags.append(f"--controllers={self.controllers}")
        self.containers[number].start("broker", *flags, *members)

    def wait_ready(self) -> None:
        for number in self.containers:
            until(partial(is_ready, self.address(number)), 120, f"node {number}")

    def console(self, *words: str) -> str:
        """What the image's console prints."""
        console = Container(self.root, self.directory / "console", self.config, {})
        done = console.call(*self.config["Entrypoint"], *words)
        assert done.returncode == 0, f"{words}: {done.stderr[-2_000:]}"
        return done.stdout

    def master(self) -> int:
        status = json.loads(
            self.console("cluster", "status", "--json", f"--bootstrap={self.controllers}")
        )
        return int(status["groups"][0]["master"])

    def end(self) -> None:
        for each in self.made:
            if each.process is not None and each.process.poll() is None:
                each.kill()


def check_config(config: dict[str, Any]) -> None:
    """The image is what the docs say of it."""
    assert config["User"] == "10001:10001", config["User"]
    assert config["StopSignal"] == "SIGINT", config["StopSignal"]
    assert config["Entrypoint"] == ["semel"], config["Entrypoint"]
    assert "/var/lib/semel" in config["Volumes"], config["Volumes"]
    assert config["Healthcheck"]["Test"][0] == "CMD", config["Healthcheck"]


def check_confined(cluster: Cluster) -> None:
    """The program has no rights, and can write to its data alone."""
    probe = (
        "import os, pathlib\n"
        "assert os.getuid() == os.getgid() == 10001 and not os.getgroups()\n"
        "status = pathlib.Path('/proc/self/status').read_text()\n"
        "assert 'CapEff:\\t0000000000000000' in status and 'NoNewPrivs:\\t1' in status\n"
        "for place in ('/', '/opt/semel', '/etc', '/usr/lib'):\n"
        "    try:\n"
        "        pathlib.Path(place, 'x').write_text('x')\n"
        "    except OSError as error:\n"
        "        print(place, error.strerror)\n"
        "    else:\n"
        "        raise SystemExit(place + ' can be written')\n"
        "pathlib.Path('/var/lib/semel/x').write_text('x')\n"
    )
    console = Container(cluster.root, cluster.directory / "probe", cluster.config, {})
    done = console.call("python", "-c", probe)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Read-only file system") == 4, done.stdout


def check_group(cluster: Cluster) -> None:
    """A group serves, loses a master and nothing else."""
    where = f"--bootstrap={cluster.controllers}"
    for number in cluster.containers:
        cluster.start(number)
    cluster.wait_ready()
    assert all(each.is_healthy() for each in cluster.containers.values())
    cluster.console("topic", "create", "orders", "--queues=2", where)
    lines = cluster.directory / "console" / "lines"
    lines.write_text("".join(f"{number}\n" for number in range(MESSAGES)))
    send = ("produce", "orders", "/var/lib/semel/lines", "--producer=loader", where)
    cluster.console(*send)
    dead = cluster.master()
    cluster.containers[dead].kill()
    assert not cluster.containers[dead].is_healthy()
    lines.write_text("".join(f"{number}\n" for number in range(2 * MESSAGES)))
    cluster.console(*send)  # goes on behind what is stored
    cluster.start(dead)
    cluster.wait_ready()
    read = cluster.console("consume", "orders", "--from=earliest", f"--max={2 * MESSAGES}", where)
    assert sorted(map(int, read.split())) == list(range(2 * MESSAGES))
    proof = json.loads(cluster.console("verify", "--exactly-once", "orders", "--json", where))
    print(f"verify: {json.dumps(proof)[:200]}", flush=True)


def check_others(cluster: Cluster) -> None:
    """Web console and mirror run from the same image, and heed its signal as process 1."""
    web = cluster.container(9)
    web.environment["SEMEL_HEALTH_URL"] = f"http://{cluster.address(9)}:7080/livez"
    where = f"--bootstrap={cluster.controllers}"
    web.start("web", f"--listen={cluster.address(9)}:7080", where)
    until(web.is_healthy, 120, "the web console")
    status = web.stop()
    assert status in (0, 130), status
    mirror = cluster.container(8)
    # Nobody answers at its target, so it tries until it is ended.
    mirror.start("mirror", f"--from={cluster.controllers}", "--to=127.0.77.99:7070", "--topics=*")
    assert mirror.process is not None
    until(lambda: children(mirror.process.pid), 60, "the mirror")  # type: ignore[union-attr]
    with contextlib.suppress(subprocess.TimeoutExpired):
        mirror.process.wait(2)
    if mirror.process.poll() is None:
        assert mirror.stop() in (1, 130)


def check_stop(cluster: Cluster) -> None:
    """Nodes end in order by the image's signal."""
    for each in reversed(cluster.containers.values()):
        assert each.stop() == 0


@contextlib.contextmanager
def working_directory(given: Path | None) -> Iterator[Path]:
    """A directory, which stays if it was given."""
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="semel-container-", dir="/var/tmp") as name:
        yield Path(name)


def main(arguments: list[str] | None = None) -> int:
    """Builds, looks, runs; an error ends it."""
    parser = argparse.ArgumentParser(prog="./run soak container", description=__doc__)
    parser.add_argument("--directory", type=Path, help="keep images and data there")
    parser.add_argument("--index", default="", help="the package index, if not pip's own")
    parser.add_argument("--suite", default="", help="Debian's release [this machine's]")
    options = parser.parse_args(arguments)
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if os.geteuid() != 0 or missing:
        lacks = ", ".join(missing) if missing else "root"
        hint = "apt-get update && apt-get install buildah debootstrap"
        print(f"error: it needs {lacks}; as root, on Debian: {hint}", file=sys.stderr)
        return 1
    suite = options.suite or run("sh", "-c", ". /etc/os-release; echo $VERSION_CODENAME").strip()
    with working_directory(options.directory) as directory:
        store = Store(directory)
        if not store("images", "--quiet", "--filter", f"reference={BASE}"):
            store.make_base(suite)
        config = store.make_image(options.index)
        check_config(config)
        root, base = store.mounted(IMAGE), store.mounted(BASE)
        added = size_of(root) - size_of(base)
        print(f"the image adds {added >> 20} MiB to its base of {size_of(base) >> 20} MiB")
        assert added <= SIZE_MAX, "the image has grown"
        data = directory / "data"
        shutil.rmtree(data, ignore_errors=True)
        data.mkdir()
        cluster = Cluster(root, data, config)
        try:
            check_confined(cluster)
            check_group(cluster)
            check_others(cluster)
            check_stop(cluster)
        except BaseException:
            for log in sorted(data.glob("*.log")):
                print(f"{log.name}: …{log.read_text(errors='replace')[-1_500:]}", file=sys.stderr)
            raise
        finally:
            cluster.end()
            store("rm", "--all")
    print("a group of the image served, lost its master, proved its messages, and ended in order")
    return 0
