"""Making certificates: a cluster's CA, and certificates that state an identity.

How it works. Keys are of NIST's curve P-256, which every TLS library takes (BoringSSL, which is
inside gRPC, takes no Ed25519 by itself). A CA may sign certificates and nothing else, and no CA
below it. Nodes get certificates for both ends of a connection, clients and administrators for the
client's end alone, so that theirs can never pose as a node. A program that serves others than
Semel's (a Kafka gateway) has a certificate with names of hosts for its port, which states no
identity.

The clients' CA is another one, which nodes trust for their callers and clients trust for nothing:
it issues the short certificates of those who log in (docs/decisions/logins.md).

Not here: files and their modes (the console's `authority.py`), checking (`tls_files.py`,
`peers.py`).
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from semel.protos.errors import InvalidRequest
from semel.protos.security.identity import CLIENT, Identity, any_node, cluster_uri
from semel.protos.security.login_facts import LoginFacts

BACKDATED: Final = datetime.timedelta(hours=1)
"""New certificates are valid from so long ago: the clocks of machines differ."""
_COMMON_NAME_CHARS_MAX: Final = 64

PrivateKey = ec.EllipticCurvePrivateKey


def new_authority(
    cluster: str, now: datetime.datetime, days: int
) -> tuple[x509.Certificate, PrivateKey]:
    """Makes a CA for a cluster, and its private key."""
    return _authority(f"Semel CA of {cluster}", cluster, now, days)


def new_clients_authority(
    cluster: str, now: datetime.datetime, days: int
) -> tuple[x509.Certificate, PrivateKey]:
    """Makes a clients' CA for a cluster, and its private key."""
    name = f"Semel clients' CA of {cluster}"
    return _authority(name, cluster, now, days, (ExtendedKeyUsageOID.CLIENT_AUTH,))


def _authority(
    name: str,
    cluster: str,
    now: datetime.datetime,
    days: int,
    uses: tuple[x509.ObjectIdentifier, ...] = (),
) -> tuple[x509.Certificate, PrivateKey]:
    """A CA; `uses` are what its certificates are for, everything if there are none."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(name)
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    builder = (
        _builder(subject, subject, key.public_key(), now, now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(identifier, critical=False)
        .add_extension(
            x509.SubjectAlternativeName([x509.UniformResourceIdentifier(cluster_uri(cluster))]),
            critical=False,
        )
    )
    if uses:
        builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    return builder.sign(key, hashes.SHA256()), key


def issue(
    identity: Identity,
    ca: x509.Certificate,
    ca_key: PrivateKey,
    now: datetime.datetime,
    days: int,
) -> tuple[x509.Certificate, PrivateKey]:
    """Makes a certificate that states `identity`, and its private key. It never outlives the CA."""
    key = ec.generate_private_key(ec.SECP256R1())
    until = min(now + datetime.timedelta(days=days), ca.not_valid_after_utc)
    return _leaf(identity, key.public_key(), ca, now, until).sign(ca_key, hashes.SHA256()), key


def issue_server(
    hosts: Sequence[str],
    ca: x509.Certificate,
    ca_key: PrivateKey,
    now: datetime.datetime,
    days: int,
) -> tuple[x509.Certificate, PrivateKey]:
    """Makes a certificate for the server's end of connections to `hosts`, names or addresses, and
    its private key. It never outlives the CA."""
    key = ec.generate_private_key(ec.SECP256R1())
    until = min(now + datetime.timedelta(days=days), ca.not_valid_after_utc)
    builder = _signed_by(ca, _name(hosts[0]), key.public_key(), now, until)
    builder = _for_uses(builder, [ExtendedKeyUsageOID.SERVER_AUTH], [*map(_host_name, hosts)])
    return builder.sign(ca_key, hashes.SHA256()), key


def hosts_of(certificate: x509.Certificate) -> list[str]:
    """Returns the names and addresses of hosts in a certificate."""
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = names.get_values_for_type(x509.IPAddress)
    return [*names.get_values_for_type(x509.DNSName), *map(str, addresses)]


def _host_name(host: str) -> x509.GeneralName:
    """Raises InvalidRequest."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host)
    except ValueError as error:
        raise InvalidRequest(f"{host!r} is no name of a host: {error}") from None


def issue_login(
    name: str,
    cluster: str,
    facts: LoginFacts,
    public_key: ec.EllipticCurvePublicKey,
    ca: x509.Certificate,
    ca_key: PrivateKey,
    now: datetime.datetime,
    until: datetime.datetime,
) -> x509.Certificate:
    """Makes a certificate for a client that has logged in, whose key is `public_key`; at most until
    `until`, and never longer than the clients' CA."""
    identity = Identity(CLIENT, name, cluster)
    until = min(until, ca.not_valid_after_utc)
    builder = _leaf(identity, public_key, ca, now, until)
    return builder.add_extension(facts.extension(), critical=False).sign(ca_key, hashes.SHA256())


def _leaf(
    identity: Identity,
    public_key: ec.EllipticCurvePublicKey,
    ca: x509.Certificate,
    now: datetime.datetime,
    until: datetime.datetime,
) -> x509.CertificateBuilder:
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(identity.uri)]
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if identity.is_node:
        names += [x509.DNSName(identity.tls_name), x509.DNSName(any_node(identity.cluster))]
        uses.append(ExtendedKeyUsageOID.SERVER_AUTH)
    subject = _name(f"{identity.kind} {identity.name}")
    return _for_uses(_signed_by(ca, subject, public_key, now, until), uses, names)


def _for_uses(
    builder: x509.CertificateBuilder,
    uses: Sequence[x509.ObjectIdentifier],
    names: Sequence[x509.GeneralName],
) -> x509.CertificateBuilder:
    return builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False).add_extension(
        x509.SubjectAlternativeName(names), critical=False
    )


def _signed_by(
    ca: x509.Certificate,
    subject: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    now: datetime.datetime,
    until: datetime.datetime,
) -> x509.CertificateBuilder:
    return (
        _builder(subject, ca.subject, public_key, now, until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(
                ca.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
            ),
            critical=False,
        )
    )


def certificate_pem(certificate: x509.Certificate) -> bytes:
    """Returns the certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def key_pem(key: PrivateKey) -> bytes:
    """Returns the private key as PEM, without a password."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now: datetime.datetime,
    until: datetime.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(until)
    )


def _name(text: str) -> x509.Name:
    """A subject is for people who look at the certificate; the identity is in the URI."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:_COMMON_NAME_CHARS_MAX])])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
