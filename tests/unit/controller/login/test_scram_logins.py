"""Exchanges of SCRAM at controllers: any may take the second half, once is enough for a proof, and
nobody learns who exists."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from semel.controller.login.scram_logins import ScramFacts, ScramLogins
from semel.controller.login.scram_nonces import GOOD_S
from semel.controller.login.slowdown import PAIR, Slowdown
from semel.protos.errors import InvalidRequest, SemelError, Throttled, Unauthenticated
from semel.protos.security.scram import HASHES, Verifier, new_verifier
from tests.kit.scram_client import ScramClient

KEY, OTHER_KEY = (ec.generate_private_key(ec.SECP256R1()).public_key() for _ in range(2))
SHA_256, SHA_512 = HASHES
PASSWORD = "correct horse"
ADDRESS = "10.0.0.1"


def verifier(password: str, mechanism: str = SHA_256, salt: bytes = b"s" * 16) -> Verifier:
    return new_verifier(mechanism, password, salt)


class Cluster:
    """What controllers share."""

    def __init__(self) -> None:
        self.secret = b"k" * 32
        self.verifiers = {("alice", SHA_256): verifier(PASSWORD)}
        self.now_s = 1_800_000_000.0

    def controller(self) -> ScramLogins:
        return ScramLogins(self._facts_of, Slowdown(), lambda: self.now_s)

    async def _facts_of(self, user: str, mechanism: str) -> ScramFacts:
        return ScramFacts(secret=self.secret, verifier=self.verifiers.get((user, mechanism)))


async def begin(at: ScramLogins, client: ScramClient) -> bytes:
    return (await at.begin(client.mechanism, client.first, KEY)).encode()


async def log_in(
    at: ScramLogins, client: ScramClient, then_at: ScramLogins | None = None
) -> tuple[str, str]:
    final = client.final(await begin(at, client))
    return await (then_at or at).finish(client.mechanism, client.first, final, KEY, ADDRESS)


async def test_any_controller_takes_the_second_half() -> None:
    cluster, client = Cluster(), ScramClient("alice", PASSWORD)
    user, answer = await log_in(cluster.controller(), client, cluster.controller())
    assert user == "alice"
    assert client.believes(answer.encode())


@pytest.mark.parametrize("user", ["alice", "nobody", "with-other"])
async def test_who_does_not_exist_is_not_told_from_a_wrong_password(user: str) -> None:
    cluster = Cluster()
    cluster.verifiers["with-other", SHA_512] = verifier(PASSWORD, SHA_512)
    client = ScramClient(user, "wrong horse")
    said = [part[:2] for part in (await begin(cluster.controller(), client)).decode().split(",")]
    assert said == ["r=", "s=", "i="]
    with pytest.raises(Unauthenticated) as refused:
        await log_in(cluster.controller(), client)
    assert refused.value.message == "no user has this name and this password, or not for SCRAM"


async def test_the_salt_of_who_does_not_exist_stays_the_same() -> None:
    cluster = Cluster()
    for user in ("alice", "nobody"):
        answers = [
            (await begin(cluster.controller(), ScramClient(user, "", nonce=nonce))).decode()
            for nonce in ("x", "y", "z")
        ]
        assert len({answer.split(",", 1)[1] for answer in answers}) == 1
        assert len({answer.split(",")[0] for answer in answers}) == 3


async def test_an_exchange_ends_in_time_or_not_at_all() -> None:
    cluster, client = Cluster(), ScramClient("alice", PASSWORD)
    final = client.final(await begin(cluster.controller(), client))
    cluster.now_s += GOOD_S + 1
    with pytest.raises(Unauthenticated, match="begin again"):
        await cluster.controller().finish(SHA_256, client.first, final, KEY, ADDRESS)


async def test_who_has_overheard_an_exchange_gets_nothing_by_it() -> None:
    cluster, client = Cluster(), ScramClient("alice", PASSWORD)
    final = client.final(await begin(cluster.controller(), client))
    at = cluster.controller()
    with pytest.raises(Unauthenticated, match="begin again"):
        await at.finish(SHA_256, client.first, final, OTHER_KEY, ADDRESS)
    await at.finish(SHA_256, client.first, final, KEY, ADDRESS)
    # The same again brings the same for the same key, and an exchange of its own nothing.
    await at.finish(SHA_256, client.first, final, KEY, ADDRESS)
    await at.begin(SHA_256, client.first, OTHER_KEY)
    with pytest.raises(Unauthenticated):
        await at.finish(SHA_256, client.first, final, OTHER_KEY, ADDRESS)


async def test_a_nonce_that_no_controller_has_made_is_refused_before_the_proof_counts() -> None:
    cluster, client = Cluster(), ScramClient("alice", PASSWORD)
    at = cluster.controller()
    salt = b"r=" + b"fyko+d2lbbFgONRv9qkxdawL" + b"own,s=c3Nzc3Nzc3Nzc3Nzc3Nzcw==,i=65536"
    for _ in range(2 * PAIR.free):
        with pytest.raises(Unauthenticated, match="begin again"):
            await at.finish(SHA_256, client.first, client.final(salt), KEY, ADDRESS)
    await log_in(at, client)


async def test_the_first_message_and_the_mechanism_cannot_be_exchanged() -> None:
    cluster = Cluster()
    cluster.verifiers["alice", SHA_512] = verifier(PASSWORD, SHA_512)
    cluster.verifiers["bob", SHA_256] = verifier(PASSWORD)
    client, other = ScramClient("alice", PASSWORD), ScramClient("bob", PASSWORD)
    final = client.final(await begin(cluster.controller(), client))
    for mechanism, first in ((SHA_512, client.first), (SHA_256, other.first)):
        with pytest.raises(Unauthenticated, match="begin again"):
            await cluster.controller().finish(mechanism, first, final, KEY, ADDRESS)


async def test_a_password_that_is_changed_between_the_halves_counts() -> None:
    cluster, client = Cluster(), ScramClient("alice", PASSWORD)
    final = client.final(await begin(cluster.controller(), client))
    for then in (verifier("another", salt=b"t" * 16), verifier(PASSWORD, salt=b"t" * 16), None):
        cluster.verifiers.pop(("alice", SHA_256), None)
        if then is not None:
            cluster.verifiers["alice", SHA_256] = then
        with pytest.raises(Unauthenticated):
            await cluster.controller().finish(SHA_256, client.first, final, KEY, ADDRESS)


async def test_many_proofs_for_one_nonce_are_guesses() -> None:
    cluster, client = Cluster(), ScramClient("alice", PASSWORD)
    at = cluster.controller()
    answer = await begin(at, client)
    for number in range(PAIR.free):
        guess = ScramClient("alice", f"guess {number}")
        with pytest.raises(Unauthenticated):
            await at.finish(SHA_256, client.first, guess.final(answer), KEY, ADDRESS)
    with pytest.raises(Throttled) as waits:
        await at.finish(SHA_256, client.first, client.final(answer), KEY, ADDRESS)
    assert waits.value.retry_after_ms > 0
    elsewhere = await at.finish(SHA_256, client.first, client.final(answer), KEY, "10.0.0.2")
    assert elsewhere[0] == "alice"


async def test_right_proofs_are_no_guesses() -> None:
    at = Cluster().controller()
    for _ in range(3 * PAIR.free):
        await log_in(at, ScramClient("alice", PASSWORD))


async def test_while_nobody_has_scram_nothing_is_begun() -> None:
    cluster = Cluster()
    cluster.secret = b""
    with pytest.raises(Unauthenticated):
        await begin(cluster.controller(), ScramClient("alice", PASSWORD))


@pytest.mark.parametrize("user", ["*", "a b", "x" * 201, "x" * 2_000])
async def test_a_name_that_nobody_can_have_takes_no_memory(user: str) -> None:
    cluster = Cluster()
    slowdown = Slowdown()
    at = ScramLogins(cluster._facts_of, slowdown, lambda: cluster.now_s)
    with pytest.raises(Unauthenticated):
        await log_in(at, ScramClient(user, PASSWORD))
    assert not slowdown._counts


async def test_other_mechanisms_and_bindings_are_refused() -> None:
    at = Cluster().controller()
    for mechanism in ("", "PLAIN", "SCRAM-SHA-1", "SCRAM-SHA-256-PLUS"):
        with pytest.raises(InvalidRequest, match="no such mechanism"):
            await at.begin(mechanism, b"n,,n=alice,r=x", KEY)
    with pytest.raises(InvalidRequest, match="channel binding"):
        await begin(at, ScramClient("alice", PASSWORD, header="p=tls-exporter,,"))
    downgraded = ScramClient("alice", PASSWORD, header="y,,")
    final = downgraded.final(await begin(at, downgraded), binding="p=tls-exporter,,")
    with pytest.raises(Unauthenticated):
        await at.finish(SHA_256, downgraded.first, final, KEY, ADDRESS)


FRAGMENTS = st.lists(
    st.sampled_from([b"n,,", b"n=alice", b",r=", b"x", b"c=biws", b",p=", b"AAAA", b"=", b"\xff"])
).map(b"".join)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.binary(max_size=99), FRAGMENTS), st.one_of(st.binary(max_size=99), FRAGMENTS))
async def test_any_messages_are_refused(first: bytes, final: bytes) -> None:
    at = Cluster().controller()
    with pytest.raises(SemelError):
        await at.finish(SHA_256, first, final, KEY, ADDRESS)
