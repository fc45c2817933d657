"""Docstrings without a subject are found wherever they stand."""

from __future__ import annotations

import pytest

from tools.docstrings import findings

SOURCE = '''"""{0}"""

class A:
    """{1}"""

    x: int = 0
    """{2}"""

    def f(self) -> None:
        """{3}"""
'''
PLAIN = "The owner of the queue."


@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize("begin", ["Of all", "Who asks", "What is stored", "So many bytes"])
def test_a_docstring_without_a_subject_is_found(at: int, begin: str) -> None:
    texts = [PLAIN] * 4
    texts[at] = f"{begin}."
    assert [text for _, text in findings(SOURCE.format(*texts))] == [f"{begin}."]


@pytest.mark.parametrize("text", [PLAIN, "Whole batches.", "Offsets.", "What a node told."])
def test_other_docstrings_are_left_alone(text: str) -> None:
    assert not list(findings(SOURCE.format(*[text] * 4)))
    assert not list(findings("'Of a string that is no docstring'.split()"))
