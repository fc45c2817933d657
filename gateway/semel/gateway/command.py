"""`semel kafka-gateway`: a server for Kafka's clients."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import click

from semel.console import render, up_kafka
from semel.console.options import examples, file_options, json_option
from semel.protos.logs import log_format_option, set_up

if TYPE_CHECKING:
    from semel.gateway.service import KafkaGateway

_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.command(
    "kafka-gateway",
    epilog=examples(
        "semel kafka-gateway",
        "semel kafka-gateway --listen 0.0.0.0:9092 --advertise broker1.example:9092 --insecure",
        "semel kafka-gateway --listen 0.0.0.0:9093 --advertise broker1.example:9093 --certificate"
        " gateway.pem --key gateway-key.pem --metrics 127.0.0.1:9404",
        "semel kafka-gateway --certificate gateway.pem --key gateway-key.pem --sasl"
        " plain,oauthbearer --sasl-logins security/login/client.toml",
        more="Kafka's clients use it as a bootstrap server. Run as many as you like: they know each"
        " other through the controllers, and clients spread over them. docs/kafka.md says what is"
        " served, and what differs from Kafka.",
    ),
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default="127.0.0.1:9092",
    show_default=True,
    help="Where Kafka's clients connect; port 0 takes a free one.",
)
@click.option(
    "--advertise",
    metavar="HOST:PORT",
    default="",
    help="The address under which clients reach it.  [default: that of --listen]",
)
@click.option("--certificate", type=_FILE, help="PEM file of the certificate for TLS.")
@click.option("--key", type=_FILE, help="PEM file of its key.")
@click.option(
    "--clients-ca",
    type=_FILE,
    help="PEM file of a CA: only clients with a certificate of it are let in.",
)
@click.option(
    "--insecure", is_flag=True, help="Allow --listen to be reached from a network without TLS."
)
@click.option(
    "--sasl",
    metavar="MECHANISM[,…]",
    default="",
    help="Clients log in by plain (a user with a password), scram-sha-256 or scram-sha-512 (the"
    " same, and the gateway does not see the password), oauthbearer (a token), or one of several,"
    " and each acts with its own rights.",
)
@click.option(
    "--sasl-logins",
    type=_FILE,
    help="Client's file that says where the controllers log clients in (login and ca).",
)
@click.option(
    "--sasl-without-tls",
    is_flag=True,
    help="Allow passwords and tokens to come over connections without TLS.",
)
@click.option(
    "--compression",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    default="none",
    show_default=True,
    help="Codec of what consumers get; all of them must know it.",
)
@click.option(
    "--metrics", metavar="HOST:PORT", default="", help="Serve /metrics, /livez and /readyz there."
)
@click.option(
    "--bootstrap",
    default="",
    metavar="HOST:PORT[,…]",
    help="The controllers.  [default: those of the client's file, SEMEL_BOOTSTRAP, or"
    " 127.0.0.1:7070]",
)
@file_options
@log_format_option(envvar="SEMEL_LOG_FORMAT")
@json_option
def kafka_gateway(
    listen: str,
    advertise: str,
    certificate: Path | None,
    key: Path | None,
    clients_ca: Path | None,
    insecure: bool,
    sasl: str,
    sasl_logins: Path | None,
    sasl_without_tls: bool,
    compression: str,
    metrics: str,
    bootstrap: str,
    log_format: str,
    as_json: bool,
) -> None:
    """Serves Kafka's clients until Ctrl-C."""
    set_up(log_format, process="kafka-gateway", level=logging.WARNING)
    up_kafka.check()
    from semel.gateway.config import GatewayConfig
    from semel.gateway.service import serve

    config = GatewayConfig(
        listen=listen,
        advertise=advertise,
        bootstrap=bootstrap,
        compression=compression,
        metrics=metrics,
        certificate=certificate,
        key=key,
        clients_ca=clients_ca,
        insecure=insecure,
        sasl=sasl,
        sasl_logins=sasl_logins,
        sasl_without_tls=sasl_without_tls,
    )
    out = render.Output(as_json=as_json)

    def on_ready(gateway: KafkaGateway) -> None:
        facts = {"event": "ready", "address": str(gateway.advertised)}
        if gateway.metrics:
            facts["metrics"] = gateway.metrics
        out.show(facts, f"Kafka's clients are served at {gateway.advertised}")

    serve(config, on_ready)
