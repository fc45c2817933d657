"""Sessions: who is found by a cookie, and for how long."""

from __future__ import annotations

from semel.web.sessions import Sessions, WebSession, is_csrf


class Visitors(Sessions):
    """Three sessions at most, ten seconds each."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.ended: list[WebSession] = []
        super().__init__(most=3, idle_s=10.0, clock=lambda: self.now_s, on_end=self.ended.append)


def test_a_session_is_found_by_its_own_cookie_alone() -> None:
    visitors = Visitors()
    cookie, session = visitors.begin(None, "anna")
    other, _ = visitors.begin(None, "ben")
    assert visitors.find(cookie) is session
    assert cookie != other
    for wrong in (None, "", "x", cookie[:-1], other + "x"):
        assert visitors.find(wrong) is None


def test_a_session_ends_when_it_was_idle_for_too_long() -> None:
    visitors = Visitors()
    cookie, session = visitors.begin(None, "anna")
    visitors.now_s = 9.0
    assert visitors.find(cookie) is session
    visitors.now_s = 18.0
    assert visitors.find(cookie) is session
    visitors.now_s = 28.5
    assert visitors.find(cookie) is None
    assert visitors.ended == [session]


def test_the_one_that_was_idle_longest_goes_for_a_new_one() -> None:
    visitors = Visitors()
    cookies = [visitors.begin(None, name)[0] for name in ("a", "b", "c")]
    assert visitors.find(cookies[0]) is not None
    visitors.begin(None, "d")
    assert [session.who for session in visitors.ended] == ["b"]
    assert len(visitors) == 3


def test_a_session_that_was_ended_is_gone() -> None:
    visitors = Visitors()
    cookie, session = visitors.begin(None, "anna")
    visitors.end(session)
    visitors.end(session)
    assert visitors.find(cookie) is None
    assert visitors.ended == [session]


def test_each_session_has_a_token_of_its_own() -> None:
    visitors = Visitors()
    _, one = visitors.begin(None, "anna")
    _, two = visitors.begin(None, "ben")
    assert is_csrf(one, one.csrf)
    for wrong in ("", two.csrf, one.csrf + "x", "ä"):
        assert not is_csrf(one, wrong)
    assert one.csrf not in repr(one)
