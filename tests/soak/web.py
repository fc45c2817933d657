"""The web console in a real Chromium before a real cluster: `./run soak web`.

How it works. A cluster of three brokers gets topics, groups, dead letters, delayed and hostile
messages. Chromium does each screen's main task as a person would, by keys and clicks, while a
second client looks whether the cluster has changed accordingly. Then axe looks at every page, dark
and light, and at 360 px no page may be wider than the screen. At last the master is killed under
open pages, which must say so, and go on by themselves.

All the time no page may ask anybody but the console for anything, open a dialog that the console
did not make, or have an error in its log; the policy against scripts that stand in pages counts as
one.

It needs Chromium (Debian: `apt-get install chromium`), and playwright and axe, which are no part of
the development environment: `.venv/bin/pip install playwright axe-playwright-python`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from semel.client import Client, IdDedup, RetryPolicy, Security, connect
from tests.kit.cluster import Cluster
from tests.kit.up_process import UpProcess
from tests.kit.waiting import until
from tests.kit.web_console import web_console

HOSTILE: Final = (
    b"<script>window.taken = true</script><img src=x onerror='window.taken = true'>",
    b"\x1b[31m\x1b]0;taken\x07",
    b"\xff\xfe\x00" * 100,
    b'{"a": "</pre><script>window.taken = true</script>"}',
)
PAGES: Final = (
    "/",
    "/topics",
    "/topic?name=orders",
    "/topic/new",
    "/topic/alter?name=orders",
    "/messages",
    "/messages?topic=orders",
    "/messages?topic=hostile",
    "/message?topic=orders&queue=0&offset=3",
    "/message?topic=hostile&queue=0&offset=2",
    "/tail?topic=orders",
    "/groups",
    "/group?name=billing",
    "/group/reset?name=billing",
    "/letters",
    "/letters?topic=billing.dead-letters",
    "/delays?topic=reminders",
    "/transactions",
    "/producers",
    "/producer?name=loader&topic=orders&queue=0&sequence=3",
    "/verify?topic=orders",
    "/audit",
    "/nothing",
)
PICTURES: Final = {
    "web-cluster": "/",
    "web-topic": "/topic?name=orders",
    "web-messages": "/messages?topic=orders&filter=json.amount+%3E+100",
    "web-message": "/message?topic=orders&queue=0&offset=3",
    "web-group": "/group?name=billing",
    "web-letters": "/letters?topic=billing.dead-letters",
}
WIDE: Final = {"width": 1200, "height": 800}
NARROW: Final = {"width": 360, "height": 740}


class Load:
    """A producer and a slow consumer that go on while pages are looked at."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=each) for each in (self._send, self._read)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _send(self) -> None:
        with connect(self._bootstrap) as client, client.producer("loader") as producer:
            number = 0
            while not self._ended.wait(0.05):
                for _ in range(10):
                    number += 1
                    value = f'{{"order": {number}, "amount": {number % 400}.50, "to": "anna"}}'
                    producer.send("orders", value, key=f"customer-{number % 50}")

    def _read(self) -> None:
        retry = RetryPolicy(steps_ms=(), queues=1)
        with (
            connect(self._bootstrap) as client,
            client.consumer("billing", ["orders"], retry=retry) as consumer,
        ):
            while not self._ended.is_set():
                messages = consumer.poll(150, 0.2)
                for message in messages:
                    if b'"amount": 13.50' in message.value:
                        consumer.reject(message, "the card was refused")
                consumer.commit()
                self._ended.wait(0.2)


def fill(client: Client) -> None:
    """Gives the cluster what the screens show."""
    admin = client.admin
    admin.create_topic("orders", queues=2)
    admin.create_topic("hostile", queues=1)
    admin.create_topic("reminders", queues=1, dedup=IdDedup(window_bytes=1 << 20))
    for number in range(60):
        admin.create_topic(f"events.{number:02}", queues=1)
    with client.producer() as producer:
        for value in HOSTILE:
            producer.send("hostile", value, key=value[:20], headers={"<b>": value})
        for number in range(20):
            name, after = f"reminder-{number}", 60.0 * 3**number % 90_000 + 30
            producer.send("reminders", b"call", message_id=name, deliver_after=after)


class Walk:
    """One browser, and everything that it must not meet."""

    def __init__(self, browser: Any, url: str, client: Client, scheme: str) -> None:
        self.url = url.rstrip("/")
        self.client = client
        context = browser.new_context(viewport=WIDE, color_scheme=scheme, accept_downloads=True)
        context.set_default_timeout(15_000)
        self.page = context.new_page()
        self.faults: list[str] = []
        self.expects_away = False
        self.page.on("request", self._on_request)
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.faults.append(f"script: {error}"))
        self.page.on("dialog", lambda dialog: self.faults.append(f"dialog: {dialog.message}"))

    def _on_request(self, request: Any) -> None:
        if not request.url.startswith((self.url, "data:")):
            self.faults.append(f"request to {request.url}")

    def _on_console(self, message: Any) -> None:
        told = "Failed to load resource" in message.text or "Response Status Error" in message.text
        refused = "status of 400" in message.text  # a form that comes back with the reason
        if message.type == "error" and not (told and (self.expects_away or refused)):
            self.faults.append(f"log: {message.text}")

    def open(self, path: str) -> None:
        """Opens a page."""
        self.page.goto(self.url + path, wait_until="load")

    def text(self, selector: str = "main") -> str:
        """What a person reads there."""
        return " ".join(str(self.page.inner_text(selector)).split())

    def sees(self, words: str, selector: str = "main", seconds: float = 20.0) -> None:
        """Waits until a person reads the words."""
        until(lambda: words in self.text(selector), seconds, f"{words!r} at {self.page.url}")

    def check(self) -> None:
        """Nothing has happened that must not."""
        assert self.page.evaluate("window.taken") is None, "a script of a message has run"
        assert self.faults == [], self.faults


# --- tasks


def glance(walk: Walk) -> None:
    walk.open("/")
    walk.sees("the broker group is whole")
    walk.sees("master")
    walk.sees("is the only one")
    until(lambda: "produced" in walk.text("#rates-text"), 10, "rates")
    assert walk.page.locator("#chart-messages canvas").count() == 1
    before = walk.text("#rates-text")
    until(lambda: walk.text("#rates-text") != before, 15, "rates that change")
    walk.page.get_by_role("button", name="Look at consumer groups").click()
    walk.sees("with consumer groups, producers and transactions")


def keys(walk: Walk) -> None:
    page = walk.page
    walk.open("/")
    page.keyboard.press("g")
    page.keyboard.press("t")
    page.wait_for_url("**/topics")
    page.keyboard.press("/")
    page.keyboard.type("EVENTS.1")
    walk.sees("10 found, scanned", "#rows")
    page.wait_for_url("**/topics?search=EVENTS.1")
    page.keyboard.press("Tab")
    page.locator("h1").click()
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/topic?name=events.11")
    page.keyboard.press("?")
    walk.sees("Next and previous row", "dialog")
    page.keyboard.press("Escape")
    theme = page.locator("html").get_attribute("data-theme")
    page.get_by_role("button", name="Dark or light").click()
    chosen = page.locator("html").get_attribute("data-theme")
    assert chosen != theme
    page.reload()
    assert page.locator("html").get_attribute("data-theme") == chosen
    page.get_by_role("button", name="Dark or light").click()


def topics(walk: Walk) -> None:
    page = walk.page
    walk.open("/topics")
    walk.sees("page 1 of 3")
    page.get_by_role("link", name="Next", exact=True).click()
    walk.sees("page 2 of 3")
    page.get_by_role("link", name="New topic").click()
    page.get_by_label("Name", exact=True).fill("by-hand")
    page.get_by_label("Queues", exact=True).fill("3")
    page.get_by_label("Retention", exact=True).fill("1 year")
    page.get_by_role("button", name="Create the topic").click()
    walk.sees("is no duration")
    page.get_by_label("Retention", exact=True).fill("36h")
    page.get_by_role("button", name="Create the topic").click()
    walk.sees("topic by-hand is created")
    page.get_by_role("link", name="Alter").click()
    page.get_by_label("Retention", exact=True).fill("48h")
    page.get_by_role("button", name="Alter the topic").click()
    walk.sees("is altered")
    assert walk.client.admin.describe_topic("by-hand").settings.retention_ms == 172_800_000
    page.get_by_label("to delete it").fill("by-han")
    page.get_by_role("button", name="Delete the topic").click()
    walk.sees("nothing was deleted")
    page.get_by_label("to delete it").fill("by-hand")
    page.get_by_role("button", name="Delete the topic").click()
    walk.sees("topic by-hand is deleted")
    assert walk.client.admin.find_topics("by-hand").matched == 0


def messages(walk: Walk) -> None:
    page = walk.page
    walk.open("/messages")
    page.get_by_role("link", name="orders", exact=True).click()
    walk.sees("50 found, scanned 50 of")
    page.get_by_role("link", name="Older").click()
    walk.sees("50 found, scanned 50 of")
    page.get_by_label("Filter", exact=True).fill('json.amount > 100 and key == "customer-7"')
    page.get_by_label("Filter", exact=True).press("Enter")
    walk.sees("customer-7")
    page.locator("tbody a").first.click()
    walk.sees('"amount": ')
    walk.sees("loader")
    page.get_by_role("link", name="hex").click()
    walk.sees("00000000 7b 22 6f 72 64 65 72 22")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert download.value.suggested_filename.startswith("orders-")
    page.get_by_role("link", name="loader").click()
    walk.sees("What became of a message")
    page.get_by_label("Topic", exact=True).fill("orders")
    page.get_by_label("Queue", exact=True).fill("0")
    page.get_by_label("Sequence", exact=True).fill("3")
    page.get_by_role("button", name="Ask").click()
    walk.sees("The last sequence that is stored there is")


def tail(walk: Walk) -> None:
    page = walk.page
    walk.open("/tail?topic=orders")
    until(lambda: page.locator("#tail tr").count() > 20, 15, "rows")
    page.get_by_role("button", name="Pause").click()
    rows = page.locator("#tail tr").count()
    time.sleep(1.0)
    assert page.locator("#tail tr").count() == rows
    page.get_by_role("button", name="Go on").click()
    until(lambda: page.locator("#tail tr").count() > rows, 15, "more rows")


def hostile(walk: Walk) -> None:
    for path in (
        "/messages?topic=hostile",
        *(f"/message?topic=hostile&queue=0&offset={n}" for n in range(len(HOSTILE))),
        *(f"/message?topic=hostile&queue=0&offset=0&as={form}" for form in ("text", "json", "hex")),
    ):
        walk.open(path)
        walk.check()
    walk.open("/message?topic=hostile&queue=0&offset=0&as=text")
    walk.sees("<script>window.taken = true</script>")
    with walk.client.producer() as producer:
        walk.open("/tail?topic=hostile")
        walk.sees("scanned 0")
        for value in HOSTILE:
            producer.send("hostile", value)
        producer.flush()
        walk.sees("<img src=x")


def groups(walk: Walk) -> None:
    page = walk.page
    client = walk.client
    with client.consumer("stopped", ["hostile"]) as consumer:
        consumer.poll(4, 10.0)
        consumer.commit()
    walk.open("/groups")
    page.get_by_label("Name", exact=True).fill("STOPP")
    walk.sees("1 found, scanned", "#rows")
    page.get_by_role("link", name="stopped").click()
    until(lambda: "0 members" in walk.text(), 30, "the member to leave")
    page.get_by_role("link", name="Reset offsets").click()
    page.get_by_role("button", name="Show the plan").click()
    walk.sees("messages would be read again")
    lag = client.admin.describe_group("stopped").lag
    page.get_by_role("button", name="Carry out this plan").click()
    walk.sees("reads on as planned")
    assert client.admin.describe_group("stopped").lag > lag
    walk.open("/group?name=billing")
    until(lambda: page.locator("figure svg polyline").count() == 1, 15, "a line of lag")
    until(lambda: page.locator("table svg polyline").count() == 2, 15, "a line for each queue")
    assert page.get_by_role("img", name="Lag of orders/0 while it was watched").count() == 1
    page.get_by_role("link", name="by age of the lock").click()
    walk.sees("Held for")

    def ages() -> list[str]:
        return [str(each) for each in page.locator("tbody tr td:nth-child(9)").all_inner_texts()]

    before = ages()
    assert all(each.endswith((" s", " min")) for each in before[:2]), before
    until(lambda: ages() != before, 15, "locks that grow older")


def letters(walk: Walk) -> None:
    page = walk.page
    walk.open("/letters")
    page.get_by_role("link", name="billing.dead-letters").click()
    walk.sees("the card was refused")
    page.locator("tbody input[type=checkbox]").first.check()
    page.get_by_role("button", name="Bring the chosen ones back").click()
    walk.sees("1 of 1 letters came back")
    walk.sees("came back")


def delays(walk: Walk) -> None:
    page = walk.page
    walk.open("/delays?topic=reminders")
    walk.sees("within 1 h")
    before = walk.client.admin.delay_stats("reminders").messages
    page.get_by_role("button", name="Cancel reminder-").first.click()
    walk.sees("the message is cancelled")
    assert walk.client.admin.delay_stats("reminders").messages == before - 1


def transactions(walk: Walk) -> None:
    stage = walk.client.transactions.stage("booking", 1)
    stage.send("hostile", b"staged")
    stage.receipt()
    walk.open("/transactions?open=1")
    walk.page.get_by_role("link", name="booking").click()
    walk.page.get_by_role("button", name="Give up what is open").click()
    walk.sees("what was open of booking is given up")


def verify(walk: Walk) -> None:
    walk.open("/verify?topic=hostile")
    walk.page.get_by_role("button", name="Verify now").click()
    walk.sees("Proven: each message is stored exactly once.", seconds=60)


def audit(walk: Walk) -> None:
    walk.open("/audit")
    walk.sees("No audit log is kept by controller 1")
    walk.page.keyboard.press("g")
    walk.page.keyboard.press("t")
    walk.page.wait_for_url("**/topics")
    walk.page.keyboard.press("g")
    walk.page.keyboard.press("a")
    walk.page.wait_for_url("**/audit")


def metrics(walk: Walk) -> None:
    walk.open("/audit")
    found = walk.page.request.get(f"{walk.url}/metrics").text()
    assert 'semel_web_requests_total{screen="audit",status="200"} ' in found
    assert 'status="500"' not in found
    assert "semel_web_live_pages" in found


def audited(walk: Walk) -> None:
    """The audit screen of a cluster with rules: who did what is found, and older pages follow."""
    page = walk.page
    walk.open("/audit")
    walk.sees("CreateTopic")
    page.get_by_label("With", exact=True).fill("orders.07")
    page.get_by_label("Result", exact=True).select_option("done")
    page.get_by_role("button", name="Search").click()
    walk.sees("1 found")
    walk.sees("name='orders.07'")
    walk.open("/audit?result=done")
    walk.sees("50 found")
    page.get_by_role("link", name="Older").click()
    walk.sees("10 found")
    walk.sees("nothing older is left")
    page.get_by_role("link", name="Newest").click()
    walk.sees("older ones are left")


TASKS: Final[tuple[Callable[[Walk], None], ...]] = (
    glance,
    keys,
    topics,
    messages,
    tail,
    hostile,
    groups,
    letters,
    delays,
    transactions,
    verify,
    audit,
    metrics,
)

# --- all pages


def accessible(walk: Walk, axe: Any, paths: tuple[str, ...] = PAGES) -> None:
    """No page has anything that axe complains about, at WCAG 2 AA."""
    options = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
    for path in paths:
        walk.open(path)
        if path == "/":
            walk.sees("is the only one")
        found = axe.run(walk.page, options=options).response["violations"]
        told = [
            f"{each['id']}: {node['html'][:120]}" for each in found for node in each["nodes"][:3]
        ]
        assert told == [], (path, told)


def readable_when_narrow(walk: Walk, paths: tuple[str, ...] = PAGES) -> None:
    """No page is wider than the narrowest screen."""
    walk.page.set_viewport_size(NARROW)
    for path in paths:
        walk.open(path)
        if path == "/":
            walk.sees("is the only one")
            until(lambda: "produced" in walk.text("#rates-text"), 10, "rates")
        width = walk.page.evaluate("document.documentElement.scrollWidth")
        assert width <= NARROW["width"], (path, width)
    walk.page.set_viewport_size(WIDE)


def lost_master(walk: Walk, cluster: Cluster) -> None:
    """The master dies under open pages: they say so, and go on by themselves."""
    walk.open("/tail?topic=hostile")
    walk.sees("scanned 0")
    other = walk.page.context.new_page()
    other.goto(walk.url + "/")
    until(lambda: "is whole" in other.inner_text("#state"), 15, "the state")
    walk.expects_away = True
    dead = cluster.master()
    cluster.kill(dead)
    until(lambda: "silent" in other.inner_text("#state"), 20, "the dead node")
    until(lambda: "under-replicated" in other.inner_text("#state"), 20, "the verdict")
    until(lambda: "does not answer" in other.inner_text("#findings"), 30, "the finding")
    with walk.client.producer() as producer:
        producer.send("hostile", b"after the master's death").result(30)
    walk.sees("after the master's death")
    cluster.start_node(dead)
    until(lambda: "is whole" in other.inner_text("#state"), 60, "the group to be whole")
    other.close()


@contextlib.contextmanager
def started(directory: Path) -> Iterator[Cluster]:
    """A cluster, also on a machine that is busy."""
    cluster = Cluster(directory)
    try:
        cluster.start(timeout=120.0)
        yield cluster
    finally:
        cluster.stop()


@contextlib.contextmanager
def ruled(directory: Path) -> Iterator[tuple[Client, str]]:
    """An administrator of a cluster with rules and audit logs, and a console with the rights of
    one."""
    options = ("--secure", "--authorization", "--brokers", "1")
    with UpProcess(directory, *options) as up:
        ready = next(event for event in up.events if event["event"] == "ready")
        files = Path(ready["ca"]).parent / "admin"
        with (
            connect(up.bootstrap, security=Security.read(files), keep_routes=False) as client,
            web_console(SEMEL_CLIENT_CONFIG=str(files / "client.toml")) as url,
        ):
            for number in range(60):
                client.admin.create_topic(f"orders.{number:02}", queues=1)
            yield client, url


def walk_audited(browser: Any, axe: Any, directory: Path) -> None:
    """The task that needs a cluster with rules."""
    with ruled(directory) as (client, url):
        base, _, key = url.partition("login?")
        walk = Walk(browser, base, client, "light")
        walk.open(f"/login?{key}")
        audited(walk)
        accessible(walk, axe, ("/audit", "/audit?result=done"))
        readable_when_narrow(walk, ("/audit",))
        walk.check()
        print("audited: ok", flush=True)


@contextlib.contextmanager
def chromium() -> Iterator[tuple[Any, Any]]:
    """A browser, and axe."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    try:
        playwright = importlib.import_module("playwright.sync_api")
        axe = importlib.import_module("axe_playwright_python.sync_playwright").Axe()
    except ImportError as error:
        raise SystemExit(f"error: {error}: see the docstring of tests/soak/web.py") from None
    if program is None:
        raise SystemExit("error: there is no Chromium: see the docstring of tests/soak/web.py")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield browser, axe
        finally:
            browser.close()


def main(arguments: list[str]) -> int:
    """Runs all tasks once; an error ends it."""
    parser = argparse.ArgumentParser(prog="./run soak web", description=__doc__)
    parser.add_argument("--pictures", type=Path, help="put pictures of six screens there")
    parser.add_argument("--only", help="only the task of this name")
    options = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="semel-web-") as directory,
        started(Path(directory)) as cluster,
        connect(cluster.bootstrap) as client,
        web_console("--bootstrap", cluster.bootstrap) as url,
        chromium() as (browser, axe),
    ):
        if options.only in (None, audited.__name__):
            walk_audited(browser, axe, Path(directory) / "ruled")
        fill(client)
        with Load(cluster.bootstrap):
            until(lambda: client.admin.find_topics("dead-letters").matched, 60, "a dead letter")
            walk = Walk(browser, url, client, "light")
            for task in TASKS:
                if options.only in (None, task.__name__):
                    task(walk)
                    walk.check()
                    print(f"{task.__name__}: ok", flush=True)
            if options.pictures is not None:
                take_pictures(walk, options.pictures)
            if options.only is None:
                for scheme in ("light", "dark"):
                    looking = Walk(browser, url, client, scheme)
                    looking.expects_away = True  # one page is not there
                    accessible(looking, axe)
                    readable_when_narrow(looking)
                    looking.check()
                    print(f"axe and 360 px, {scheme}: ok", flush=True)
                lost_master(walk, cluster)
                walk.check()
                print("a master that dies: ok", flush=True)
    return 0


def take_pictures(walk: Walk, directory: Path) -> None:
    """Pictures of screens, for the docs."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, path in PICTURES.items():
        walk.open(path)
        if path == "/":
            walk.sees("is the only one")
            time.sleep(10)
        if path.startswith("/group?"):
            time.sleep(8)
        walk.page.screenshot(path=directory / f"{name}.png")
