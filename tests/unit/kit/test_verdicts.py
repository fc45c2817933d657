"""Which outcomes of judges are surprises, and what their table says."""

from __future__ import annotations

from tests.kit.verdicts import Outcome, Verdict, Verdicts, verdict_of

PASSED = Verdict("kcat", "group", Outcome.PASSED)
FAILED = Verdict("franz", "TestTxn/one[2]", Outcome.FAILED, "said")
LEFT_OUT = Verdict("franz", "TestShare", Outcome.LEFT_OUT, "said")


def found(*verdicts: Verdict) -> Verdicts:
    every = Verdicts()
    for verdict in verdicts:
        every.add(verdict)
    return every


def test_a_test_without_a_reason_is_a_surprise() -> None:
    verdicts = found(PASSED, FAILED, LEFT_OUT)
    assert verdicts.surprises({"franz: TestTxn/*": "no transactions"}) == [
        "franz: TestShare left out, no reason"
    ]
    reasons = {"franz: TestTxn/one[2]": "no transactions", "franz: TestShare": "no shares"}
    assert verdicts.surprises(reasons) == []


def test_a_reason_that_no_longer_is_one_is_a_surprise() -> None:
    reasons = {"kcat: group": "no groups", "kcat: x*": "nothing", "another: y": "was not run"}
    assert found(PASSED).surprises(reasons) == [
        "kcat: group passes, and has a reason why not",
        "the reason for kcat: group is of no use",
        "the reason for kcat: x* is of no use",
    ]


def test_the_table_has_all_counts_and_each_reason() -> None:
    lines = found(PASSED, FAILED, LEFT_OUT).table({"franz: TestTxn/*": "no transactions"})
    assert "| kcat | 1 | 0 | 0 |" in lines
    assert "| franz | 0 | 1 | 1 |" in lines
    assert "| franz | `TestTxn/one[2]` | failed | no transactions |" in lines
    assert "| franz | `TestShare` | left out | ? |" in lines


def test_what_a_test_raises_is_its_verdict() -> None:
    def wrong() -> None:
        raise AssertionError("lost\nmore")

    assert verdict_of("kcat", "t", wrong).said == "AssertionError: lost"
    assert verdict_of("kcat", "t", lambda: None).outcome is Outcome.PASSED
