"""What `./run soak kafka-clients` reads out of the reports of other people's test runners."""

from __future__ import annotations

import json
from pathlib import Path

from tests.kit.verdicts import Outcome
from tests.soak import kafka_franz, kafka_go, kafka_python, kafka_sarama

REPORT = """<testsuites><testsuite>
<testcase classname="test.integration.test_admin_integration" name="test_acls">
<failure message="assert 1&#10;more"/></testcase>
<testcase classname="test.integration.test_consumer_integration" name="test_group"/>
<testcase classname="test.integration.test_sasl_integration" name="test_admin[PLAIN]">
<skipped message="external"/></testcase>
<testcase classname="test.integration.test_ssl_integration" name="test_ssl">
<error message="no broker"/></testcase>
</testsuite></testsuites>"""

GO = """package kgo

func newTestClient() {}

func TestPure(t *testing.T) {
}

func TestTalks(t *testing.T) {
	cl, err := newTestClient()
}

func TestTopic(t *testing.T) {
	topic, cleanup := tmpTopic(t)
}
"""


def test_a_report_of_pytest_becomes_verdicts() -> None:
    found = {each.test: each for each in kafka_python.verdicts_of(REPORT)}
    assert {name: each.outcome.value for name, each in found.items()} == {
        "admin: test_acls": "failed",
        "consumer: test_group": "passed",
        "sasl: test_admin[PLAIN]": "left out",
        "ssl: test_ssl": "failed",
    }
    assert found["admin: test_acls"].said == "assert 1"


def test_only_tests_that_open_a_client_are_run(tmp_path: Path) -> None:
    (tmp_path / "client_test.go").write_text(GO)
    assert kafka_franz.talking(tmp_path) == ["TestTalks", "TestTopic"]


def test_of_sarama_only_files_of_functional_tests_count(tmp_path: Path) -> None:
    (tmp_path / "a_test.go").write_text("//go:build functional\n\n" + GO)
    (tmp_path / "b_test.go").write_text("//go:build !functional\n\n" + GO)
    (tmp_path / "c_test.go").write_text(GO)
    assert kafka_sarama.functional(tmp_path) == ["TestPure", "TestTalks", "TestTopic"]


def test_events_of_go_become_verdicts_of_the_smallest_parts() -> None:
    events = [
        {"Action": "output", "Test": "TestA/one", "Output": "    a_test.go:7: it broke\n"},
        {"Action": "fail", "Test": "TestA/one"},
        {"Action": "pass", "Test": "TestA/two"},
        {"Action": "fail", "Test": "TestA"},
        {"Action": "skip", "Test": "TestB"},
        {"Action": "pass", "Test": "TestC/part"},
        {"Action": "fail", "Test": "TestC"},
        {"Action": "fail"},
    ]
    lines = ["ok\n", *(json.dumps(event) for event in events)]
    found = list(kafka_go.verdicts_of("judge", lines, ["TestA", "TestB", "TestC", "TestHangs"]))
    assert {each.test: each.outcome for each in found} == {
        "TestA/one": Outcome.FAILED,
        "TestA/two": Outcome.PASSED,
        "TestB": Outcome.LEFT_OUT,
        "TestC": Outcome.FAILED,
        "TestC/part": Outcome.PASSED,
        "TestHangs": Outcome.FAILED,
    }
    assert found[0].said == "it broke"


def test_what_a_test_says_may_be_on_the_line_after() -> None:
    said = [
        "    a_test.go:7: \n",
        "\tError Trace:\ta_test.go:7\n",
        "\tError:  \tUnexpected error:\n",
    ]
    said += ["\t        \tno broker\n", "\tError:  \tmore\n"]
    events = [{"Action": "output", "Test": "TestA", "Output": text} for text in said]
    events.append({"Action": "fail", "Test": "TestA"})
    [found] = kafka_go.verdicts_of("judge", map(json.dumps, events), ["TestA"])
    assert found.said == "Unexpected error: no broker"
