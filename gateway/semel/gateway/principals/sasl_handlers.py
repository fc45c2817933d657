"""SaslHandshake and SaslAuthenticate, as requests of Kafka's protocol.

Not here: what is decided (`sasl_gate.py`, `sasl_state.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from semel.gateway.answers import answer
from semel.gateway.dispatch import Handler, RequestContext
from semel.gateway.versions import ApiKey


def handlers() -> Mapping[ApiKey, Handler]:
    """The handlers of SASL."""
    return {
        ApiKey.SASL_HANDSHAKE: sasl_handshake,
        ApiKey.SASL_AUTHENTICATE: sasl_authenticate,
    }


async def sasl_handshake(request: Any, context: RequestContext) -> Any:
    """Answers SaslHandshake, versions 0 and 1."""
    gate = context.gate
    if gate is None:
        return answer(request, error_code=ErrorCode.illegal_sasl_state, mechanisms=())
    known = gate.handshake(request.mechanism, context.version)
    return answer(
        request,
        error_code=ErrorCode.none if known else ErrorCode.unsupported_sasl_mechanism,
        mechanisms=gate.mechanisms,
    )


async def sasl_authenticate(request: Any, context: RequestContext) -> Any:
    """Answers SaslAuthenticate, versions 0 to 2."""
    if context.gate is None:
        code, message = ErrorCode.illegal_sasl_state, "this gateway knows no SASL"
        return answer(request, error_code=code, error_message=message, auth_bytes=b"")
    verdict = await context.gate.authenticate(request.auth_bytes)
    code = ErrorCode.none
    if verdict.out_of_order:
        code = ErrorCode.illegal_sasl_state
    elif verdict.refusal:
        code = ErrorCode.sasl_authentication_failed
    return answer(
        request,
        error_code=code,
        error_message=verdict.refusal or None,
        auth_bytes=verdict.answer,
        session_lifetime=verdict.lifetime_ms,
    )
