"""The chart, rendered by Helm, validated, and run: `./run soak helm`.

How it works. Helm v4 is built from its Go module, and kubernetes-validate gets an environment of
its own (`requirements/helm.txt`). The chart is linted and rendered with each file of values in
tests/soak/helm_values, and every object is validated against Kubernetes' schemas, strictly, for
several versions. Values that contradict each other must be refused with a reason.

Then the pods of two renderings run as processes of this machine, by the very scripts of the chart:
only addresses, directories and the numbers of pods are exchanged. A cluster starts from
`insecure.yaml`, its probes answer as the manifests ask them, the preStop hook of the master moves
mastership away, and the Job of `grown.yaml` has two more pods join.

It needs Go and its module proxy, and a package index.

Not here: a Kubernetes. Scheduling, volumes, DNS, secrets and the order of updates were never seen.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import venv
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.kit.deployed_flags import unknown
from tests.kit.waiting import until
from tools.source_tree import ROOT

CHART: Final = ROOT / "deploy" / "helm" / "semel"
VALUES: Final = ROOT / "tests" / "soak" / "helm_values"
PINS: Final = ROOT / "requirements" / "helm.txt"
HELM: Final = "helm.sh/helm/v4/cmd/helm@v4.3.1"
VERSIONS: Final = ("1.31", "1.34", "1.37")
"""Versions of Kubernetes whose schemas count."""
FOREIGN: Final = ("ServiceMonitor",)
"""Kinds that are not Kubernetes' own."""
REFUSED: Final[dict[tuple[str, ...], str]] = {
    (): "clusterId",
    ("clusterId=a b", "insecure=true"): "clusterId",
    ("clusterId=c",): "without TLS everybody",
    ("clusterId=c", "insecure=true", "tls.secretPrefix=x"): "contradict each other",
    ("clusterId=c", "insecure=true", "tls.authorization=true"): "tls.authorization needs",
    ("clusterId=c", "insecure=true", "tls.loginPort=1"): "tls.loginPort needs",
    ("clusterId=c", "insecure=true", "controllers.replicas=2"): "replicas",
    ("clusterId=c", "insecure=true", "unknown=1"): "unknown",
    ("clusterId=c", "insecure=true", "brokers.extraArgs={-x}"): "extraArgs",
    (
        *("clusterId=c", "insecure=true"),
        *("groups[0].id=1", "groups[0].founders=3", "groups[0].replicas=1"),
    ): "at least founders",
    (
        *("clusterId=c", "tls.secretPrefix=x"),
        *("groups[0].id=1", "groups[0].founders=1", "groups[0].replicas=3"),
    ): "set tls.operatorSecret",
    (
        *("clusterId=c", "insecure=true"),
        *("groups[0].id=1", "groups[0].founders=3", "groups[0].replicas=3"),
        *("groups[1].id=2", "groups[1].firstNode=3"),
        *("groups[1].founders=1", "groups[1].replicas=1"),
    ): "two broker groups have a node 3",
    ("clusterId=c", "tls.secretPrefix=x", "web.enabled=true"): "web.clientSecret is missing",
    (
        *("clusterId=c", "tls.secretPrefix=x", "web.enabled=true", "web.clientSecret=y"),
    ): "web.httpsSecret is missing",
    ("clusterId=c", "tls.secretPrefix=x", "serviceMonitor.enabled=true"): "needs a client's",
}
"""Values, and what must stand in the refusal."""


class Tools:
    """Helm and kubernetes-validate, made once in a directory."""

    def __init__(self, directory: Path) -> None:
        self.helm = directory / "helm"
        self._validate = directory / "validate"
        if not self.helm.exists():
            print("building Helm, which takes minutes", flush=True)
            environment = {**os.environ, "GOBIN": str(directory), "GOFLAGS": "-mod=mod"}
            subprocess.run(["go", "install", HELM], check=True, env=environment)
        if not self._validate.exists():
            venv.create(self._validate, symlinks=True, with_pip=False)
            pip = [sys.executable, "-m", "pip", "--python", str(self._validate / "bin" / "python")]
            pip += ["install", "-q", "--disable-pip-version-check", "--require-hashes"]
            subprocess.run([*pip, "-r", str(PINS)], check=True)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.helm), *arguments], capture_output=True, text=True, check=False
        )

    def render(self, values: Path) -> list[dict[str, Any]]:
        """All objects of the chart with a file of values."""
        flags = ["-f", str(values)]
        linted = self.run("lint", "--strict", str(CHART), *flags)
        assert linted.returncode == 0, linted.stdout + linted.stderr
        done = self.run("template", "orders", str(CHART), "--namespace", "prod", *flags)
        assert done.returncode == 0, done.stderr
        yaml = importlib.import_module("yaml")
        return [each for each in yaml.safe_load_all(done.stdout) if each]

    def validate(self, objects: list[dict[str, Any]], place: Path) -> None:
        """Holds objects against the schemas of Kubernetes."""
        own = [each for each in objects if each["kind"] not in FOREIGN]
        place.write_text("\n---\n".join(map(json.dumps, own)))
        program = str(self._validate / "bin" / "kubernetes-validate")
        for version in VERSIONS:
            done = subprocess.run(
                [program, "--strict", "--kubernetes-version", version, str(place)],
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stdout + done.stderr


def pod_specs(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the pods of all objects are."""
    return [
        each["spec"]["template"]["spec"]
        for each in objects
        if each["kind"] in ("StatefulSet", "Deployment", "Job")
    ]


def check_objects(objects: list[dict[str, Any]]) -> None:
    """What must hold whatever the values are."""
    names = [(each["kind"], each["metadata"]["name"]) for each in objects]
    assert len(names) == len(set(names)), "two objects have one name"
    sets = {each["metadata"]["name"]: each for each in objects if each["kind"] == "StatefulSet"}
    budgets = {
        each["metadata"]["name"]: each["spec"]
        for each in objects
        if each["kind"] == "PodDisruptionBudget"
    }
    assert sets.keys() == budgets.keys()
    for name, each in sets.items():
        assert budgets[name]["maxUnavailable"] == 1
        wanted = each["spec"]["template"]["metadata"]["labels"]
        assert budgets[name]["selector"]["matchLabels"] == wanted
        assert each["spec"]["serviceName"] == name
        assert ("Service", name) in names
        affinity = each["spec"]["template"]["spec"]["affinity"]["podAntiAffinity"]
        assert json.dumps(wanted) in json.dumps(affinity)
    for pod in pod_specs(objects):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["automountServiceAccountToken"] is False
        volumes = {each["name"] for each in pod.get("volumes", ())} | {"data"}
        for container in pod["containers"]:
            confined = container["securityContext"]
            assert confined["readOnlyRootFilesystem"] is True
            assert confined["allowPrivilegeEscalation"] is False
            assert confined["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["requests"]
            assert {each["name"] for each in container.get("volumeMounts", ())} <= volumes
            (script,) = container["args"]
            assert unknown(script) == [], unknown(script)
            subprocess.run(["sh", "-n", "-c", script], check=True)
            hook = container.get("lifecycle", {}).get("preStop", {}).get("exec")
            if hook is not None:
                subprocess.run(["sh", "-n", "-c", hook["command"][-1]], check=True)
                grace = pod["terminationGracePeriodSeconds"]
                assert grace >= int(hook["command"][-1].split()[1]) + 60


def check_validator(tools: Tools, objects: list[dict[str, Any]], place: Path) -> None:
    """A field that Kubernetes does not know is noticed."""
    (each, *_) = [each for each in objects if each["kind"] == "StatefulSet"]
    planted = {**each, "spec": {**each["spec"], "replica": 3}}
    try:
        tools.validate([planted], place)
    except AssertionError:
        return
    raise AssertionError("a misspelt field passes the validator")


def check_refusals(tools: Tools) -> None:
    """Values that cannot be meant are refused with a reason."""
    for values, reason in REFUSED.items():
        sets = [part for value in values for part in ("--set", value)]
        done = tools.run("template", "orders", str(CHART), *sets)
        assert done.returncode != 0, f"{values} is taken"
        assert reason in done.stderr, f"{values}: {done.stderr}"


# --- running what the chart says -----------------------------------------------------------------


@dataclass(slots=True)
class Pod:
    """One pod of a rendering, as a process with an address of its own."""

    name: str
    address: str
    script: str
    hook: str
    probe: dict[str, Any]
    data: Path
    process: subprocess.Popen[bytes] | None = None

    def environment(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return {"PATH": path, "POD_NAME": self.name, "SEMEL_ROUTES_DIRECTORY": ""}

    def start(self) -> None:
        with self.data.with_suffix(".log").open("ab") as log:
            self.process = subprocess.Popen(
                ["/bin/sh", "-ec", self.script],
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def is_ready(self) -> bool:
        """What the readiness probe of the manifest gets."""
        path = self.probe["httpGet"]["path"]
        try:
            with urllib.request.urlopen(f"http://{self.address}:9100{path}", timeout=5) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def run_hook(self) -> None:
        subprocess.run(["/bin/sh", "-c", self.hook], env=self.environment(), check=True)

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@dataclass(slots=True)
class Machine:
    """Pods of one release on this machine."""

    directory: Path
    pods: dict[str, Pod] = field(default_factory=dict)

    def place(self, objects: list[dict[str, Any]]) -> None:
        """Takes in what pods the StatefulSets have more than before."""
        for each in objects:
            if each["kind"] != "StatefulSet":
                continue
            first = each["spec"]["ordinals"]["start"]
            for number in range(first, first + each["spec"]["replicas"]):
                name = f"{each['metadata']['name']}-{number}"
                if name not in self.pods:
                    address = f"127.0.78.{10 + len(self.pods)}"
                    (container,) = each["spec"]["template"]["spec"]["containers"]
                    hook = container.get("lifecycle", {}).get("preStop", {}).get("exec")
                    self.pods[name] = Pod(
                        name,
                        address,
                        container["args"][0],
                        hook["command"][-1] if hook else "",
                        container["readinessProbe"],
                        self.directory / name,
                    )
        for pod in self.pods.values():
            pod.script = self.here(pod.script, pod)
            pod.hook = self.here(pod.hook, pod)

    def here(self, script: str, pod: Pod | None = None) -> str:
        """A script of the chart with addresses and directories of this machine."""
        for name, other in self.pods.items():
            domain = f"{name.rpartition('-')[0]}.prod.svc.cluster.local"
            script = script.replace(f"{name}.{domain}", other.address)
            if other is pod:
                script = script.replace(f"$POD_NAME.{domain}", pod.address)
        if pod is not None:
            script = script.replace("0.0.0.0", pod.address)
            script = script.replace("/var/lib/semel/data", str(pod.data))
        return script

    def semel(self, *words: str) -> str:
        """What the console prints."""
        where = f"--bootstrap={self.pods['orders-semel-controller-1'].address}:7070"
        done = subprocess.run(
            [sys.executable, "-m", "semel.console", *words, where],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "SEMEL_ROUTES_DIRECTORY": ""},
        )
        assert done.returncode == 0, f"{words}: {done.stderr[-2_000:]}"
        return done.stdout

    def group(self) -> dict[str, Any]:
        groups = json.loads(self.semel("cluster", "status", "--json"))["groups"]
        return dict(groups[0])

    def wait_ready(self) -> None:
        for pod in self.pods.values():
            until(pod.is_ready, 180, pod.name)

    def end(self) -> None:
        for pod in self.pods.values():
            if pod.process is not None and pod.process.poll() is None:
                pod.process.kill()
                pod.process.wait()


def check_running(tools: Tools, directory: Path) -> None:
    """The rendered scripts make a cluster, hand over, and grow it."""
    machine = Machine(directory)
    objects = tools.render(VALUES / "insecure.yaml")
    machine.place(objects)
    try:
        for pod in machine.pods.values():
            pod.start()
        machine.wait_ready()
        machine.semel("topic", "create", "t", "--queues=2")
        before = machine.group()["master"]
        pod = machine.pods[f"orders-semel-broker-1-{before}"]
        pod.run_hook()
        until(lambda: machine.group()["master"] not in (0, before), 60, "another master")
        assert not pod.is_ready(), "a drained node is to be stopped"
        assert pod.stop() == 0
        pod.start()
        machine.wait_ready()
        print("the preStop hook has moved mastership, and the pod is back", flush=True)
        objects = tools.render(VALUES / "grown.yaml")
        machine.place(objects)
        joining = [pod for pod in machine.pods.values() if pod.process is None]
        assert len(joining) == 2
        for pod in joining:
            pod.start()
        (job,) = [each for each in objects if each["kind"] == "Job"]
        (container,) = job["spec"]["template"]["spec"]["containers"]
        script = machine.here(container["args"][0])
        environment = joining[0].environment()

        def grow() -> bool:
            command = ["/bin/sh", "-ec", script]
            return not subprocess.run(command, env=environment, timeout=300, check=False).returncode

        until(grow, 180, "a Job that ends well")  # it is tried again until the pods are there
        assert grow(), "the Job finds something to do"
        machine.wait_ready()
        assert len(machine.group()["nodes"]) == 5
        print("the Job has grown the group to five", flush=True)
    except BaseException:
        for log in sorted(directory.glob("*.log")):
            print(f"{log.name}: …{log.read_text(errors='replace')[-1_500:]}", file=sys.stderr)
        raise
    finally:
        machine.end()


def main(arguments: list[str] | None = None) -> int:
    """Renders, validates, runs; an error ends it."""
    parser = argparse.ArgumentParser(prog="./run soak helm", description=__doc__)
    parser.add_argument("--tools", type=Path, help="keep Helm and the validator there")
    parser.add_argument("--show", metavar="VALUES", help="print the rendering of a file, no more")
    options = parser.parse_args(arguments)
    if shutil.which("go") is None:
        print("error: it needs Go, to build Helm", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="semel-helm-") as name:
        place = options.tools or Path(name) / "tools"
        place.mkdir(parents=True, exist_ok=True)
        tools = Tools(place.resolve())
        if options.show:
            print(json.dumps(tools.render(VALUES / options.show), indent=1))
            return 0
        for values in sorted(VALUES.glob("*.yaml")):
            objects = tools.render(values)
            check_objects(objects)
            tools.validate(objects, Path(name) / "objects.yaml")
            print(f"{values.name}: {len(objects)} objects, valid", flush=True)
        check_validator(tools, objects, Path(name) / "planted.yaml")
        check_refusals(tools)
        print(f"{len(REFUSED)} contradictions are refused", flush=True)
        check_running(tools, Path(name))
    return 0
