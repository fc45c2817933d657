"""Spark on a secured cluster: it proves who it is in its driver and in its tasks, and shows
nobody how."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

import pytest

from semel.client import Security, connect
from semel.console.authority import Authority
from semel.protos.security.identity import Identity
from semel.protos.security.tokens import new_token
from tests.kit.up_process import UpProcess
from tests.spark.logged_in import FOUND

ROOT: Final = Path(__file__).parents[2]
LOGIN_S: Final = 4
"""How long a login lasts here."""
STREAM_S: Final = 9
"""How long the stream has something to read: two logins, and a new token after half of it."""
ROWS: Final = 500
PASSWORD: Final = "correct horse battery"


@pytest.mark.timeout(700)
def test_spark_logs_in_everywhere_goes_on_when_logins_end_and_tells_no_secret(
    tmp_path: Path,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for part in ("BROKER", "CONTROLLER"):
            patch.setenv(f"SEMEL_{part}_AUTHORIZATION", "1")
        patch.setenv("SEMEL_CONTROLLER_LOGIN_MS_MAX", str(LOGIN_S * 1000))
        with UpProcess(tmp_path / "cluster", "--secure", "--brokers", "1") as up:
            carry_out(up, tmp_path)


def carry_out(up: UpProcess, directory: Path) -> None:
    ready = next(event for event in up.events if event["event"] == "ready")
    authority = Authority(Path(ready["ca"]).parent)
    security = Security.read(authority.directory / "admin")
    secrets = {name: token(authority, ready["cluster_id"], name) for name in "abcd"}
    files = {name: secret_file(directory / f"token-{name}", secrets[name]) for name in "abcd"}
    certified = authority.issue(
        Identity("client", "alice", ready["cluster_id"]), bootstrap=up.bootstrap
    )
    with_certificate = str(certified.directory / "client.toml")
    login = Path(ready["login_config"])
    secret_file(login.parent / "password", PASSWORD)
    with_password = secret_file(
        login.parent / "password.toml",
        login.read_text() + '\nuser = "alice"\npassword_file = "password"\n',
    )
    with connect(up.bootstrap, security=security, keep_routes=False) as client:
        client.admin.add_user("alice", PASSWORD)
        for topic in ("orders", "written", "copy"):
            client.admin.create_topic(topic, queues=1)
        client.admin.change_access_rules(
            add=["allow user:alice * topic:*", "allow user:alice * transaction:*"]
        )
        with client.producer() as producer:
            producer.send_many("orders", [b"%d" % number for number in range(ROWS)])
            producer.flush()
        plan = {
            "topic": "orders",
            "written": "written",
            "copy": "copy",
            "rows": ROWS,
            "reads": {
                "by the environment": {},
                "by a certificate": {"clientConfig": with_certificate},
                "by a password": {"clientConfig": with_password},
            },
            "writes": {"by a token": {"token": secrets["b"]}},
            "stream": {"tokenFile": files["c"]},
            "stream_s": STREAM_S,
            "certified": with_certificate,
            "token_file": files["c"],
            "next_token": files["d"],
        }
        found = run_spark(directory, plan, str(login), secrets["a"])
        assert found["by the environment"] == found["by a certificate"] == ROWS
        assert found["by a password"] == found["by a token"] == ROWS
        assert found["stream"]["triggers"] > 3
        with client.reader("written", end="latest") as reader:
            assert sorted(int(each.value) for each in reader) == list(range(ROWS))
        with client.reader("copy", end="latest") as reader:
            numbers = sorted(int(each.value.split()[1]) for each in reader)
        assert numbers == list(range(found["stream"]["sent"])), "each exactly once"
    assert_hidden(directory, {*secrets.values(), PASSWORD}, set(files.values()))


def run_spark(
    directory: Path, plan: dict[str, object], client_config: str, token: str
) -> dict[str, Any]:
    """What the application found. All that it said is in the file `output`."""
    (directory / "plan.json").write_text(json.dumps(plan))
    (directory / "plan.json").chmod(0o600)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SEMEL_")}
    output = directory / "output"
    with output.open("w") as file:
        done = subprocess.run(
            [sys.executable, "-m", "tests.spark.logged_in", str(directory)],
            stdout=file,
            stderr=subprocess.STDOUT,
            timeout=600,
            check=False,
            cwd=ROOT,
            env={
                **clean,
                "SEMEL_ROUTES_DIRECTORY": "",
                "SEMEL_CLIENT_CONFIG": client_config,
                "SEMEL_TOKEN": token,
            },
        )
    said = output.read_text()
    assert done.returncode == 0, said[-4_000:]
    (line,) = [line for line in said.splitlines() if line.startswith(FOUND)]
    found: dict[str, Any] = json.loads(line.removeprefix(FOUND))
    return found


def assert_hidden(directory: Path, secrets: set[str], holders: set[str]) -> None:
    """No secret is in anything that Spark has shown or kept, nor in what the cluster has."""
    (directory / "plan.json").unlink()
    shown = directory / "shown"
    assert "SQL" in (shown / "pages").read_text(errors="replace")
    assert any((shown / "events").iterdir())
    places = [
        (str(path), path.read_bytes())
        for path in directory.rglob("*")
        if path.is_file() and str(path) not in holders and path.name != "password"
    ]
    for name, content in places:
        for secret in secrets:
            assert secret.encode() not in content, f"a secret is in {name}"


def token(authority: Authority, cluster: str, name: str) -> str:
    return new_token(
        authority.token_key(),
        user="alice",
        cluster=cluster,
        expires_s=int(time.time()) + 3_600 + ord(name),
    )


def secret_file(path: Path, text: str) -> str:
    path.write_text(text + "\n")
    path.chmod(0o600)
    return str(path)
