"""ApiVersions: what the gateway serves, as clients ask for it first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kio.index import load_response_schema
from kio.schema.errors import ErrorCode

from semel.gateway.answers import answer, respond
from semel.gateway.dispatch import Handler, RequestContext
from semel.gateway.versions import TABLE, ApiKey


def handlers() -> Mapping[ApiKey, Handler]:
    """The handler of ApiVersions."""
    return {ApiKey.API_VERSIONS: api_versions}


async def api_versions(request: Any, context: RequestContext) -> Any:
    """Answers with the whole table, and notes what the client calls itself."""
    context.software.name = getattr(request, "client_software_name", "")
    context.software.version = getattr(request, "client_software_version", "")
    return answer(request, error_code=ErrorCode.none, api_keys=_rows())


async def unsupported_version() -> Any:
    """Answers a request of a version that is not served: in the layout of version 0, which every
    client can read, with the versions of ApiVersions itself and of everything else."""
    kind = load_response_schema(ApiKey.API_VERSIONS, 0)
    return respond(kind, error_code=ErrorCode.unsupported_version, api_keys=_rows())


def _rows() -> list[dict[str, int]]:
    return [
        {"api_key": key.value, "min_version": each.lowest, "max_version": each.highest}
        for key, each in TABLE.items()
    ]
