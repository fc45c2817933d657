"""Every method of every service, by every kind of caller, on a real gRPC server.

The table is made from the descriptors: what a method declares says what each caller must get. The
handlers behind the guard note that they were reached, and answer with nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from semel.protos.errors import (
    PermissionDenied,
    SemelError,
    Unauthenticated,
    Unavailable,
    UnknownTopic,
)
from semel.protos.rpc import CHANNEL_OPTIONS, SERVER_OPTIONS, ServerInterceptor, error_from_rpc
from semel.protos.security.declared import Declared, Need, declared
from semel.protos.security.enforcement import (
    CALLER,
    Caller,
    CallGuard,
    Enforcer,
    Refusal,
)
from semel.protos.security.rules import Action, Kind, Rule, RuleBook, Scope
from semel.protos.security.token_keys import public_keys
from semel.protos.security.tokens import TokenVerifier, new_token
from semel.protos.v1 import broker_pb2, controller_pb2
from tests.kit.declared_calls import METHODS, naming, path_of

NOW_S = 1_000_000.0
TOPIC_ID = 7
TOPIC = "orders"
NAMES = {
    Kind.TOPIC: TOPIC,
    Kind.CONSUMER_GROUP: "billing",
    Kind.PRODUCER: "loader",
    Kind.TRANSACTION: "nightly",
}


class Names:
    """One topic and one stager have numbers."""

    def name_of(self, kind: Kind, number: int) -> str | None:
        return NAMES[kind] if number == TOPIC_ID else None


class Server:
    """All services behind one guard, and calls to them."""

    def __init__(self) -> None:
        self.reached: list[str] = []
        self.refusals: list[Refusal] = []
        self.replies: dict[str, Message] = {}
        """What handlers answer, by method; nothing elsewhere."""
        self.nodes: dict[str, Caller] = {
            kind: Caller(principal=f"{kind}:1", node=kind) for kind in ("broker", "controller")
        }
        self.key = Ed25519PrivateKey.generate()
        self.verifier = TokenVerifier("c1", public_keys(self.key))
        self.enforcer = Enforcer(Names(), self.refusals.append)
        self.address = ""

    async def authenticate(self, context: Any) -> Caller:
        told = dict(context.invocation_metadata())
        if (node := told.get("node")) is not None:  # stands for a node's certificate
            return self.nodes[str(node)]
        shown = str(told.get("authorization", ""))
        if not shown:
            raise Unauthenticated("nothing was shown")
        token = self.verifier.verify(shown.removeprefix("Bearer "), NOW_S)
        return Caller(principal=f"user:{token.user}", scopes=token.scopes)

    def token(self, user: str, *, cluster: str = "c1", expires_s: float = NOW_S + 60) -> Any:
        made = new_token(self.key, user=user, cluster=cluster, expires_s=int(expires_s))
        return (("authorization", f"Bearer {made}"),)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[grpc.aio.Channel]:
        guard = CallGuard(self.enforcer, self.authenticate)
        server = grpc.aio.server(
            interceptors=[ServerInterceptor(checks=guard)], options=SERVER_OPTIONS
        )
        services: dict[str, dict[str, Any]] = {}
        for method in METHODS:
            services.setdefault(method.containing_service.full_name, {})[method.name] = (
                self._handler(method)
            )
        server.add_generic_rpc_handlers(
            tuple(
                grpc.method_handlers_generic_handler(name, handlers)
                for name, handlers in services.items()
            )
        )
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            async with grpc.aio.insecure_channel(
                f"127.0.0.1:{port}", options=CHANNEL_OPTIONS
            ) as channel:
                yield channel
        finally:
            await server.stop(0)

    def _handler(self, method: MethodDescriptor) -> Any:
        path = path_of(method)
        reply = GetMessageClass(method.output_type)()
        codec = (GetMessageClass(method.input_type).FromString, type(reply).SerializeToString)

        def reach() -> Message:
            self.reached.append(path)
            assert CALLER.get() is not None
            return self.replies.get(path, reply)

        async def single(request: Any, context: Any) -> Message:
            return reach()

        async def streaming(request: Any, context: Any) -> Any:
            yield reach()

        if method.client_streaming:
            return grpc.stream_stream_rpc_method_handler(streaming, *codec)
        if method.server_streaming:
            return grpc.unary_stream_rpc_method_handler(streaming, *codec)
        return grpc.unary_unary_rpc_method_handler(single, *codec)


async def call(
    channel: grpc.aio.Channel, method: MethodDescriptor, request: Message, metadata: Any
) -> tuple[str, Message | None]:
    """The class of the error, or "" and the reply."""
    path = path_of(method)
    decode = GetMessageClass(method.output_type).FromString
    encode = type(request).SerializeToString
    try:
        if method.client_streaming:
            # Nothing is written: a write to a stream that was just refused fails in gRPC before
            # the refusal is read, and that error would be the call's.
            stream = channel.stream_stream(path, encode, decode)(metadata=metadata, timeout=10)
            reply: Any = await stream.read()
            return "", reply
        if method.server_streaming:
            replies = channel.unary_stream(path, encode, decode)(
                request, metadata=metadata, timeout=10
            )
            return "", await anext(aiter(replies))
        return "", await channel.unary_unary(path, encode, decode)(
            request, metadata=metadata, timeout=10
        )
    except grpc.aio.AioRpcError as error:
        return type(error_from_rpc(error)).__name__, None


def book_for(what: Declared, *, without: int | None = None) -> RuleBook:
    """Rules that give `user:in` exactly what the method needs, but for one of its rights."""
    rules = [
        Rule(True, "user:in", Scope(right.action, right.kind, NAMES.get(right.kind, "")))
        for right in what.rights
    ]
    left_out = None if without is None else rules[without]
    return RuleBook(rule for rule in rules if rule != left_out)


async def wrong_rows(server: Server) -> list[str]:
    """Rows of the table of methods and callers that are not as the methods declare."""
    wrong: list[str] = []
    async with server.serving() as channel:
        callers: dict[str, Any] = {
            "allowed": server.token("in"),
            "another": server.token("out"),
            "nobody": (),
            "expired": server.token("in", expires_s=NOW_S - 1),
            "another cluster": server.token("in", cluster="c2"),
            "broker": (("node", "broker"),),
            "controller": (("node", "controller"),),
        }

        async def row(method: MethodDescriptor, who: str, expected: tuple[str, ...]) -> None:
            server.reached.clear()
            request = naming(method, NAMES, TOPIC_ID)
            got, _ = await call(channel, method, request, callers[who])
            if got not in expected or bool(server.reached) is not (got == ""):
                wrong.append(f"{who} calls {path_of(method)}: {got or 'served'}")

        for method in METHODS:
            what = declared(path_of(method))
            server.enforcer.take(book_for(what))
            for who in callers:
                await row(method, who, expected_error(what, who))
            for number in range(0 if what.each_message else len(what.rights)):
                server.enforcer.take(book_for(what, without=number))
                await row(method, "allowed", ("PermissionDenied", "UnknownTopic"))
    return wrong


async def test_the_whole_table_of_methods_and_callers() -> None:
    assert await wrong_rows(Server()) == []


def _nothing_is_checked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Enforcer, "check_call", lambda *_: None)


def _only_the_first_right_is_checked(patch: pytest.MonkeyPatch) -> None:
    needs = Declared.needs
    patch.setattr(Declared, "needs", lambda self, request: needs(self, request)[:1])


def _nodes_are_clients(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Declared, "for_nodes_only", False)


def _tokens_last_for_ever(patch: pytest.MonkeyPatch) -> None:
    verify = TokenVerifier.verify
    patch.setattr(TokenVerifier, "verify", lambda self, token, now_s: verify(self, token, 0))


@pytest.mark.parametrize(
    "plant",
    [
        _nothing_is_checked,
        _only_the_first_right_is_checked,
        _nodes_are_clients,
        _tokens_last_for_ever,
    ],
)
async def test_the_table_finds_a_planted_bug(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert await wrong_rows(Server())


def expected_error(what: Declared, who: str) -> tuple[str, ...]:
    if who in ("nobody", "expired", "another cluster"):
        return ("Unauthenticated",)
    if who in what.nodes or what.anybody or what.each_message:
        return ("",)
    if what.for_nodes_only:
        return ("PermissionDenied",)
    if who == "allowed":
        return ("",)
    return ("PermissionDenied", "UnknownTopic")


async def test_a_topic_that_may_not_be_seen_is_one_that_does_not_exist() -> None:
    server = Server()
    server.enforcer.take(RuleBook())
    methods = {path_of(method): method for method in METHODS}
    async with server.serving() as channel:
        caller = server.token("out")
        answers: set[str] = set()
        for topic_id in (TOPIC_ID, 99):
            request = broker_pb2.FindMessageRequest(topic_id=topic_id)
            method = methods["/semel.protos.v1.Broker/FindMessage"]
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await channel.unary_unary(
                    path_of(method),
                    broker_pb2.FindMessageRequest.SerializeToString,
                    broker_pb2.FindMessageReply.FromString,
                )(request, metadata=caller, timeout=10)
            error = error_from_rpc(failed.value)
            assert type(error) is UnknownTopic
            answers.add(error.message.replace(f"{topic_id:#x}", "ID"))
        assert len(answers) == 1
        for name in (TOPIC, "nothing"):
            request_ = controller_pb2.DeleteTopicRequest(name=name)
            method = methods["/semel.protos.v1.Controller/DeleteTopic"]
            assert (await call(channel, method, request_, caller))[0] == "UnknownTopic"
            created = controller_pb2.CreateTopicRequest(name=name)
            method = methods["/semel.protos.v1.Controller/CreateTopic"]
            assert (await call(channel, method, created, caller))[0] == "PermissionDenied"


async def test_who_may_see_a_topic_is_told_what_is_denied() -> None:
    server = Server()
    server.enforcer.take(RuleBook([Rule.parse("allow user:in describe topic:orders")]))
    async with server.serving() as channel:
        method = next(one for one in METHODS if one.name == "DeleteTopic")
        request = controller_pb2.DeleteTopicRequest(name=TOPIC)
        assert (await call(channel, method, request, server.token("in")))[0] == "PermissionDenied"
    (refusal,) = server.refusals
    assert (refusal.principal, refusal.action, refusal.resource) == (
        "user:in",
        "delete",
        "topic:orders",
    )


async def test_a_reply_tells_only_of_what_the_caller_may_describe() -> None:
    server = Server()
    routes = controller_pb2.Routes(
        topics=[controller_pb2.TopicRoute(name=name) for name in ("orders", "secret")],
        removed_topics=["secret"],
    )
    server.replies = {
        "/semel.protos.v1.Controller/GetRoutes": routes,
        "/semel.protos.v1.Controller/WatchRoutes": routes,
    }
    server.enforcer.take(RuleBook([Rule.parse("allow user:in write topic:orders")]))
    async with server.serving() as channel:
        for name in ("GetRoutes", "WatchRoutes"):
            method = next(one for one in METHODS if one.name == name)
            request = controller_pb2.GetRoutesRequest()
            _, reply = await call(channel, method, request, server.token("in"))
            assert isinstance(reply, controller_pb2.Routes)
            assert [topic.name for topic in reply.topics] == ["orders"]
            assert list(reply.removed_topics) == []
        method = next(one for one in METHODS if one.name == "GetRoutes")
        _, whole = await call(
            channel, method, controller_pb2.GetRoutesRequest(), (("node", "broker"),)
        )
        assert whole == routes


async def test_nothing_that_was_shown_stands_in_an_error_or_a_refusal() -> None:
    server = Server()
    async with server.serving() as channel:
        method = next(one for one in METHODS if one.name == "GetNodeStatus")
        ((key, value),) = server.token("in", cluster="c2")
        request = broker_pb2.NodeStatusRequest()
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await channel.unary_unary(
                path_of(method),
                broker_pb2.NodeStatusRequest.SerializeToString,
                broker_pb2.NodeStatusReply.FromString,
            )(request, metadata=((key, value),), timeout=10)
        secret = value.removeprefix("Bearer ")
        for part in secret.split("."):
            assert part not in str(failed.value)
            assert part not in repr(server.refusals)


# --- gates ----------------------------------------------------------------------------------------

WRITE = Need(Action.WRITE, Kind.TOPIC, TOPIC_ID)
READ = Need(Action.READ, Kind.TOPIC, TOPIC_ID)


def enforcer(refusals: list[Refusal] | None = None) -> Enforcer:
    found: list[Refusal] = [] if refusals is None else refusals
    return Enforcer(Names(), found.append)


ALICE = Caller(principal="user:alice")


async def test_a_gate_decides_once_and_remembers() -> None:
    made = enforcer()
    made.take(RuleBook([Rule.parse("allow user:alice write topic:orders")]))
    CALLER.set(ALICE)
    ended: list[SemelError] = []
    with made.gate("/s/m", ended.append) as gate:
        gate.admit([WRITE])
        checks: list[object] = []
        made.check_needs = lambda *args: checks.append(args)  # type: ignore[method-assign]
        gate.admit([WRITE])
        assert not checks
    assert not ended


async def test_messages_in_a_producer_s_name_are_its_owner_s_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = enforcer()
    own = Rule.parse("allow user:alice own-name producer:loader")
    made.take(RuleBook([Rule.parse("allow user:bob write topic:orders")]))
    CALLER.set(ALICE)
    ended: list[SemelError] = []
    with made.gate("/s/m", ended.append) as gate:
        gate.admit_producer(TOPIC_ID + 1)  # without a name
        monkeypatch.setattr(Names, "name_of", lambda self, kind, number: NAMES[kind])
        with pytest.raises(PermissionDenied):
            gate.admit_producer(TOPIC_ID + 1)  # the same one has got its name since
        made.take(RuleBook([own]))
        gate.admit_producer(TOPIC_ID + 1)
        made.take(RuleBook())
        assert [type(error) for error in ended] == [PermissionDenied]


async def test_a_gate_refuses_and_the_stream_goes_on() -> None:
    refusals: list[Refusal] = []
    made = enforcer(refusals)
    made.take(RuleBook([Rule.parse("allow user:alice read topic:orders")]))
    CALLER.set(ALICE)
    with made.gate("/s/m", lambda error: None) as gate:
        gate.admit([READ])
        for _ in range(2):
            with pytest.raises(PermissionDenied):
                gate.admit([WRITE])
        gate.admit([READ])
    assert len(refusals) == 2


async def test_a_right_that_is_revoked_ends_the_streams_that_used_it() -> None:
    made = enforcer()
    allow = Rule.parse("allow user:alice write topic:orders")
    made.take(RuleBook([allow]))
    CALLER.set(ALICE)
    used: list[SemelError] = []
    unused: list[SemelError] = []
    with made.gate("/s/m", used.append) as one, made.gate("/s/m", unused.append):
        one.admit([WRITE])
        made.take(RuleBook([allow, Rule.parse("allow user:bob read topic:orders")]))
        assert not used
        made.take(RuleBook([allow, Rule.parse("deny user:alice * topic:*")]))
        assert [type(error) for error in used] == [UnknownTopic]
        assert not unused
        with pytest.raises(UnknownTopic):
            one.admit([WRITE])


async def test_a_gate_that_is_closed_hears_nothing_more() -> None:
    made = enforcer()
    made.take(RuleBook([Rule.parse("allow user:alice write topic:orders")]))
    CALLER.set(ALICE)
    ended: list[SemelError] = []
    with made.gate("/s/m", ended.append) as gate:
        gate.admit([WRITE])
    made.take(RuleBook())
    assert not ended


def test_a_token_narrows_whoever_it_is() -> None:
    made = enforcer()
    made.take(RuleBook([Rule.parse("allow user:alice * topic:*")]))
    scopes = (Scope.parse("read topic:orders"),)
    for caller in (
        Caller(principal="user:alice", scopes=scopes),
        Caller(principal="user:root", administrator=True, scopes=scopes),
    ):
        made.check_needs("/s/m", [READ], caller)
        with pytest.raises(PermissionDenied):
            made.check_needs("/s/m", [WRITE], caller)


def test_what_does_not_exist_needs_no_right() -> None:
    gone = Need(Action.TRANSACT, Kind.TRANSACTION, 99)
    made = enforcer()
    made.take(RuleBook())
    made.check_needs("/s/m", [gone], ALICE)


async def test_nobody_is_let_in_or_out_before_the_rules_are_known() -> None:
    made = enforcer()
    CALLER.set(ALICE)
    ended: list[SemelError] = []
    with pytest.raises(Unavailable):
        made.check_needs("/s/m", [READ], ALICE)
    with made.gate("/s/m", ended.append) as gate:
        with pytest.raises(Unavailable):
            gate.admit([READ])
        made.take(RuleBook([Rule.parse("allow * read topic:*")]))
        gate.admit([READ])
    assert not ended
    made.check_needs("/s/m", [READ], Caller(principal="user:root", administrator=True))
