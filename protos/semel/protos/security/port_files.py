"""A certificate of one's own for a port that others' programs and browsers reach over TLS.

How it works. The certificate, its key and the clients' CA are any PEM files; they need not come
from the cluster's CA. When a file was replaced, connections that come from then on use the new
ones, and those that are open stay as they are. Files that do not fit each other, because one of two
is replaced so far, are logged, and those before stay in force.

Not here: certificates that name an identity of the cluster (`tls_files.py`, `credentials.py`).
"""

from __future__ import annotations

import ssl
from functools import partial
from pathlib import Path

from semel.protos.errors import InvalidRequest
from semel.protos.security.followed import Followed


def port_context(certificate: Path, key: Path, clients_ca: Path | None = None) -> ssl.SSLContext:
    """BLOCKING. Returns a context for a port, which follows the files. With `clients_ca` only
    clients that show a certificate of it are let in. Raises InvalidRequest."""
    paths = [certificate, key] if clients_ca is None else [certificate, key, clients_ca]
    followed = Followed(paths, partial(_context, certificate, key, clients_ca))
    context = _context(certificate, key, clients_ca)

    def on_hello(connection: ssl.SSLObject, *_: object) -> None:
        connection.context = followed.current()

    context.sni_callback = on_hello
    return context


def _context(certificate: Path, key: Path, clients_ca: Path | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
        if clients_ca is not None:
            context.load_verify_locations(clients_ca)
            context.verify_mode = ssl.CERT_REQUIRED
            # A session that is resumed would let a client in whose CA was replaced since.
            context.options |= ssl.OP_NO_TICKET
            context.num_tickets = 0
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise InvalidRequest(f"certificate {certificate} cannot be used: {error}") from None
    return context
