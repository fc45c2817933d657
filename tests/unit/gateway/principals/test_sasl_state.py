"""SASL on one connection: the table of the module's text, walked, and any order of messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.gateway.principals.proofs import Mechanism
from semel.gateway.principals.sasl_state import OPEN_KEYS, OutOfOrder, SaslState, State
from semel.gateway.versions import ApiKey

PLAIN, BEARER, SCRAM = Mechanism.PLAIN, Mechanism.OAUTHBEARER, Mechanism.SCRAM_SHA_256
NOW_S = 100.0
CLOSED_KEYS = set(ApiKey) - OPEN_KEYS


def begun() -> SaslState:
    return SaslState([PLAIN, BEARER, SCRAM])


def chosen(*, bare: bool = False) -> SaslState:
    state = begun()
    assert state.on_handshake("PLAIN", 0 if bare else 1)
    return state


def checking() -> SaslState:
    state = chosen()
    assert state.on_message(bare=False) is PLAIN
    return state


def halfway(*, bare: bool = False) -> SaslState:
    state = begun()
    assert state.on_handshake(SCRAM.value, 0 if bare else 1)
    assert state.on_message(bare=bare) is SCRAM
    state.on_more()
    return state


def known(ends_s: float | None = None) -> SaslState:
    state = checking()
    assert state.on_right("alice", ends_s)
    return state


def failed() -> SaslState:
    state = checking()
    state.on_wrong()
    return state


@pytest.mark.parametrize(
    ("made", "in_state", "opened", "others"),
    [
        (begun, State.BEGUN, True, False),
        (chosen, State.CHOSEN, True, False),
        (halfway, State.HALFWAY, True, False),
        (checking, State.CHECKING, False, False),
        (known, State.KNOWN, True, True),
        (failed, State.FAILED, False, False),
    ],
)
def test_what_is_served_in_which_state(
    made: Callable[[], SaslState], in_state: State, opened: bool, others: bool
) -> None:
    state = made()
    assert state.state is in_state
    assert {key for key in OPEN_KEYS if state.may_serve(key, NOW_S)} == (
        OPEN_KEYS if opened else set()
    )
    assert {key for key in CLOSED_KEYS if state.may_serve(key, NOW_S)} == (
        CLOSED_KEYS if others else set()
    )


@pytest.mark.parametrize("made", [chosen, halfway, checking, failed])
def test_a_handshake_out_of_order_is_the_end(made: Callable[[], SaslState]) -> None:
    state = made()
    with pytest.raises(OutOfOrder):
        state.on_handshake("PLAIN", 1)
    assert state.state is State.FAILED


@pytest.mark.parametrize("made", [begun, checking, known, failed])
def test_a_message_out_of_order_is_the_end(made: Callable[[], SaslState]) -> None:
    state = made()
    with pytest.raises(OutOfOrder):
        state.on_message(bare=False)
    assert state.state is State.FAILED


@pytest.mark.parametrize("name", ["GSSAPI", "plain", "", "SCRAM-SHA-512", "SCRAM-SHA-256-PLUS"])
def test_an_unknown_mechanism_is_the_end(name: str) -> None:
    state = begun()
    assert not state.on_handshake(name, 1)
    assert state.state is State.FAILED


@pytest.mark.parametrize("bare", [True, False])
def test_bare_messages_follow_the_old_handshake_alone(bare: bool) -> None:
    assert chosen(bare=bare).bare is bare
    state = chosen(bare=bare)
    with pytest.raises(OutOfOrder):
        state.on_message(bare=not bare)
    state = chosen(bare=bare)
    assert state.on_message(bare=bare) is PLAIN
    assert not state.bare


@pytest.mark.parametrize("bare", [True, False])
def test_two_messages_are_both_bare_or_neither(bare: bool) -> None:
    state = halfway(bare=bare)
    assert state.wants_bare is bare
    with pytest.raises(OutOfOrder):
        state.on_message(bare=not bare)
    state = halfway(bare=bare)
    assert state.on_message(bare=bare) is SCRAM
    assert not state.wants_bare
    assert state.on_right("alice", NOW_S + 1)
    assert not state.wants_bare


def test_a_client_halfway_through_proving_it_again_is_not_served() -> None:
    state = halfway()
    state.on_message(bare=False)
    assert state.on_right("alice", NOW_S + 9)
    state.on_handshake(SCRAM.value, 1)
    state.on_message(bare=False)
    state.on_more()
    assert not state.may_serve(ApiKey.PRODUCE, NOW_S)
    state.on_message(bare=False)
    assert not state.on_right("bob", NOW_S + 9)
    assert state.state is State.FAILED


def test_a_client_proves_it_again_and_stays_who_it_is() -> None:
    state = known()
    assert state.on_handshake("PLAIN", 1)
    assert not state.may_serve(ApiKey.PRODUCE, NOW_S)
    state.on_message(bare=False)
    assert state.on_right("alice", NOW_S + 1)
    assert state.may_serve(ApiKey.PRODUCE, NOW_S)
    state.on_handshake("PLAIN", 1)
    state.on_message(bare=False)
    assert not state.on_right("bob", None)
    assert not state.may_serve(ApiKey.PRODUCE, NOW_S)
    assert state.state is State.FAILED


def test_a_client_does_not_change_its_mechanism() -> None:
    state = known()
    with pytest.raises(OutOfOrder):
        state.on_handshake("OAUTHBEARER", 1)


def test_a_session_ends() -> None:
    state = known(NOW_S)
    assert state.may_serve(ApiKey.PRODUCE, NOW_S - 0.1)
    assert not state.may_serve(ApiKey.PRODUCE, NOW_S)
    assert state.may_serve(ApiKey.SASL_HANDSHAKE, NOW_S)


STEPS = st.one_of(
    st.tuples(
        st.just("handshake"), st.sampled_from(["PLAIN", "SCRAM-SHA-256", "?"]), st.booleans()
    ),
    st.tuples(st.just("message"), st.just(""), st.booleans()),
    st.tuples(st.just("more"), st.just(""), st.booleans()),
    st.tuples(st.just("right"), st.sampled_from(["alice", "bob"]), st.booleans()),
    st.tuples(st.just("wrong"), st.just(""), st.booleans()),
)


@given(st.lists(STEPS, max_size=20))
def test_nothing_is_served_without_a_right_proof_in_any_order(steps: list[Any]) -> None:
    state = begun()
    proved: set[str] = set()
    dead = fresh = False
    for what, name, flag in steps:
        try:
            if what == "handshake":
                fresh = False
                dead |= not state.on_handshake(name, int(flag))
            elif what == "message":
                state.on_message(bare=flag)
            elif state.state is State.CHECKING:  # the shell asks in no other state
                if what == "right":
                    proved.add(name)
                    fresh = state.on_right(name, None)
                    dead |= not fresh
                elif what == "more":
                    state.on_more()
                else:
                    state.on_wrong()
                    dead = True
        except OutOfOrder:
            dead = True
        served = state.may_serve(ApiKey.FETCH, NOW_S)
        assert served is (fresh and not dead and state.state is State.KNOWN)
        assert not served or proved == {state.name}
