"""What Kafka's clients hear of the cluster's errors."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from semel.gateway.refusals import error_code
from semel.protos.errors import PermissionDenied, SemelError


@pytest.mark.parametrize(
    ("resource", "code"),
    [
        ("topic:orders", ErrorCode.topic_authorization_failed),
        ("consumer-group:topic:x", ErrorCode.group_authorization_failed),
        ("transaction:booking", ErrorCode.transactional_id_authorization_failed),
        ("cluster", ErrorCode.cluster_authorization_failed),
        ("producer:loader", ErrorCode.topic_authorization_failed),
        ("", ErrorCode.topic_authorization_failed),
    ],
)
def test_what_is_denied_chooses_the_code(resource: str, code: ErrorCode) -> None:
    assert error_code(PermissionDenied("no", resource=resource)) is code


def test_an_error_that_fits_nothing_is_the_server_s() -> None:
    assert error_code(SemelError("from the future")) is ErrorCode.unknown_server_error
