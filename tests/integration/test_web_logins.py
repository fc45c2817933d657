"""Visitors of the web console of a secured cluster: who gets in, and with whose rights."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from semel.client import Security, connect
from semel.console.authority import Authority
from semel.protos.security.tokens import new_token
from tests.kit.up_process import UpProcess
from tests.kit.web_console import Visitor, tags, web_console

pytestmark = pytest.mark.timeout(240)


class Secured:
    """A cluster with rules: anna may do all with topics of hers."""

    def __init__(self, up: UpProcess) -> None:
        self.ready = next(event for event in up.events if event["event"] == "ready")
        self.directory = Path(self.ready["ca"]).parent
        security = Security.read(self.directory / "admin")
        with connect(up.bootstrap, security=security, keep_routes=False) as client:
            client.admin.change_access_rules(add=["allow user:anna * topic:anna.*"])
            for name in ("anna.orders", "ben.orders"):
                client.admin.create_topic(name, queues=1)
            with client.producer() as producer:
                for name in ("anna.orders", "ben.orders"):
                    producer.send(name, f"of {name}").result()

    def token(self, user: str, seconds: int = 600) -> str:
        return new_token(
            Authority(self.directory).token_key(),
            user=user,
            cluster=self.ready["cluster_id"],
            expires_s=int(time.time()) + seconds,
        )


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    options = ("--secure", "--authorization", "--brokers", "1", "--web", "0")
    with UpProcess(tmp_path_factory.mktemp("secured") / "cluster", *options) as up:
        yield Secured(up)


def test_a_visitor_has_the_rights_of_the_token(secured: Secured) -> None:
    config = str(secured.directory / "login" / "client.toml")
    with web_console(SEMEL_CLIENT_CONFIG=config) as url:
        stranger = Visitor(url)
        page = stranger.get("/topics")
        assert "Your token of the cluster" in page.text
        assert "Topics" not in re.findall(r"<nav.*?</nav>", page.html, re.S)
        for path in ("/cluster/rates", "/topic?name=anna.orders", "/messages/download?topic=x"):
            answer = stranger.ask("GET", path, None, {})
            assert answer.status == 303
            assert answer.headers["location"].startswith("/login")
        assert stranger.ask("POST", "/topic/delete", "name=anna.orders", {}).status == 303
        assert stranger.ask("GET", "/topics", None, {"HX-Request": "true"}).status == 401

        token = secured.token("anna")
        for wrong in ("x", token[:-3] + "abc", ""):
            page = stranger.post("/login", proof=wrong)
            assert page.status == 401
            assert wrong not in page.text or wrong in ("x", "")
        foreign = {"Origin": "http://evil.example"}
        assert stranger.ask("POST", "/login", f"proof={token}", foreign).status == 403
        for target in ("//evil.example", "https://evil.example", "/\\evil.example"):
            page = Visitor(url).ask("POST", "/login", f"proof={token}&next={target}", {})
            assert page.headers["location"] == "/"

        anna = Visitor(url)
        page = anna.post("/login", proof=token, next="/topics?search=orders")
        assert "user:anna" in page.text
        assert "1 found, scanned 1 of 1" in page.text
        assert token not in page.html
        assert "of anna.orders" in anna.get("/messages", topic="anna.orders").text
        hidden = anna.get("/messages", topic="ben.orders")
        assert hidden.status == 404
        assert "of ben.orders" not in hidden.text
        anna.get("/topic/new")
        assert "anna.new is created" in anna.post("/topic/new", name="anna.new", queues=1).text
        anna.get("/topic/new")
        refused = anna.post("/topic/new", name="ben.new", queues=1)
        assert refused.status == 403
        assert "You may not do this" in refused.text
        assert anna.get("/cluster/state").status == 403

        cookie = anna.cookie
        anna.get("/topics")
        assert "Your token of the cluster" in anna.post("/logout").text
        anna.cookie = cookie
        assert "Your token of the cluster" in anna.get("/topics").text


def test_a_console_with_a_certificate_asks_for_its_key(secured: Secured) -> None:
    config = str(secured.directory / "admin" / "client.toml")
    with web_console(SEMEL_CLIENT_CONFIG=config) as url:
        key = url.rpartition("key=")[2]
        assert len(key) > 30
        stranger = Visitor(url)
        assert "The key that semel web printed" in stranger.get("/topics").text
        assert stranger.post("/login", proof="x").status == 401
        assert stranger.get("/login", key=key + "x").status == 200
        assert "The key that semel web printed" in stranger.get("/topics").text
        owner = Visitor(url)
        parts = urlsplit(url)
        page = owner.get(f"{parts.path}?{parts.query}")
        assert "Groups and nodes" in page.text
        assert key not in page.html
        assert "ben.orders" in owner.get("/topics").text
        assert "whole" in owner.part("/cluster/state").text


def test_the_audit_screen_tells_who_did_what(secured: Secured) -> None:
    login, admin = (str(secured.directory / name / "client.toml") for name in ("login", "admin"))
    with web_console(SEMEL_CLIENT_CONFIG=login) as url:
        ben = Visitor(url)
        ben.post("/login", proof=secured.token("ben"), next="/topics")
        for number in range(3):
            ben.get("/topic/new")
            assert ben.post("/topic/new", name=f"ben.{number}", queues=1).status == 403
        refused = ben.get("/audit")
        assert refused.status == 403
        assert "ben.0" not in refused.text
    with web_console(SEMEL_CLIENT_CONFIG=admin) as url:
        owner = Visitor(url)
        parts = urlsplit(url)
        owner.get(f"{parts.path}?{parts.query}")
        page = owner.get("/audit", search="user:BEN", result="denied")
        for number in range(3):
            assert f"create topic:ben.{number}" in page.text
        assert "describe cluster" in page.text, "that he asked for this page is told as well"
        page = owner.get("/audit", search="ben.orders", result="done")
        assert "CreateTopic" in page.text
        assert "name='ben.orders'" in page.text
        assert "1 found" in page.text
        assert "user:ben" in owner.get("/audit", result="logged in").text
        rules = owner.get("/audit", result="changed").text
        assert "allow user:anna * topic:anna.*" in rules
        assert "0 found" in owner.get("/audit", search="<script>").text
        assert "script" not in tags(owner.part("/audit", search="<script>").html)
    security = Security.read(secured.directory / "admin")
    with connect(secured.ready["bootstrap"], security=security, keep_routes=False) as client:
        whole = client.admin.read_audit(limit=500)
        assert whole.end
        assert not whole.unread
        assert not whole.without
        found, pages = list(whole.events[:0]), 0
        page_of_two = client.admin.read_audit(limit=2)
        while True:
            found += page_of_two.events
            pages += 1
            if page_of_two.end:
                break
            page_of_two = client.admin.read_audit(page_of_two.positions, limit=2)
        assert found == whole.events
        assert pages > 2
    console = [sys.executable, "-m", "semel.console", "audit", "--client-config", admin]
    done = subprocess.run(
        [*console, "--result", "denied", "--search", "ben.1", "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    [event] = json.loads(done.stdout)["events"]
    assert (event["who"], event["what"]) == ("user:ben", "create topic:ben.1")


def test_a_cluster_that_is_up_has_it_at_its_side(secured: Secured) -> None:
    visitor = Visitor(secured.ready["web"])
    assert visitor.get("/livez").body == b"alive\n"
    assert "Your token of the cluster" in visitor.get("/").text
    page = visitor.post("/login", proof=secured.token("anna"), next="/topics")
    assert "anna.orders" in page.text


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--listen", "0.0.0.0:0"], "is reached from other machines"),
        (["--listen", "nowhere"], "is not HOST:PORT"),
        (["--certificate", __file__], "needs a certificate and its key"),
    ],
)
def test_it_does_not_open_to_a_network_by_accident(options: list[str], reason: str) -> None:
    command = [sys.executable, "-m", "semel.console", "web", "--bootstrap", "127.0.0.1:1"]
    done = subprocess.run(
        [*command, *options], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert reason in done.stderr
    assert len(done.stderr.splitlines()) == 1
