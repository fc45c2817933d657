"""The refusal of nodes to serve a network without TLS.

How it works. On loopback addresses a node needs no TLS, as only this machine reaches it. Elsewhere
it does not start without, unless it is told `--insecure`, which it says in its log at each start.
"""

from __future__ import annotations

import logging

import click

from semel.protos.addresses import Address
from semel.protos.errors import InvalidRequest
from semel.protos.security.credentials import Security

logger = logging.getLogger(__name__)

insecure_option = click.option(
    "--insecure",
    is_flag=True,
    help="Serve a network without TLS: anybody who reaches this node can read, write and delete "
    "everything.",
)


def check_exposed(listen: str, security: Security | None, *, insecure: bool) -> None:
    """Raises InvalidRequest for an address that others reach, without TLS and not `insecure`."""
    if security is not None:
        if insecure:
            raise InvalidRequest("a node has TLS (--tls-dir) or is --insecure, not both")
        return
    if Address.parse(listen).loopback:
        return
    if not insecure:
        raise InvalidRequest(
            f"{listen} is reached from other machines, and there is no TLS: give --tls-dir (made "
            "by `semel security init`), or say --insecure where the network is trusted"
        )
    logger.warning("INSECURE: anybody who reaches %s can read, write and delete everything", listen)
