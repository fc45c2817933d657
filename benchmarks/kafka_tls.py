"""Kafka with TLS on every wire, as a peer: a script that measures it in plaintext, made to use it.

How it works. The script is loaded from the path that is given, and its class of a cluster gets SSL
listeners, client certificates included, in place of plain ones; its clients, Java's and
librdkafka's, get the same certificate. Everything that is measured stays the script's own. It
starts itself again for its environment and for its clients, so this file needs nothing but the
standard library and what the script installs.

    python benchmarks/kafka_tls.py CERTIFICATES peers/peer_kafka.py --only W2,W3 --runs 1

CERTIFICATES is a directory with ca.pem and server.pem (key and certificate of 127.0.0.1, PEM).

Not here: making certificates and comparing (`security.py`).
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any


def broker_properties(certificates: Path) -> dict[str, str]:
    """What a node, or a client in Java, is configured with."""
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates / "server.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates / "ca.pem"),
    }


def client_properties(certificates: Path) -> dict[str, str]:
    """What a client of librdkafka is configured with."""
    return {
        "security.protocol": "SSL",
        "ssl.ca.location": str(certificates / "ca.pem"),
        "ssl.certificate.location": str(certificates / "server.pem"),
        "ssl.key.location": str(certificates / "server.pem"),
    }


def load(script: Path) -> Any:
    """The script as a module."""
    sys.path.insert(0, str(script.parent))
    spec = importlib.util.spec_from_file_location("peer_kafka", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def encrypted_cluster(module: Any, certificates: Path) -> type:
    """The script's class of a cluster, with TLS."""
    ours = broker_properties(certificates)

    class EncryptedKafka(module.Kafka):  # type: ignore[misc]
        def start_node(self, node: int) -> None:
            path = self.dir / f"{node}.properties"
            text = path.read_text()
            if "ssl.keystore" not in text:
                text = text.replace("listeners=PLAINTEXT://", "listeners=SSL://")
                more = {
                    **ours,
                    "security.inter.broker.protocol": "SSL",
                    "listener.security.protocol.map": "SSL:SSL,CONTROLLER:SSL",
                    "ssl.client.auth": "required",
                }
                path.write_text(text + "".join(f"{key}={more[key]}\n" for key in more))
            self.peer = f"kafka {module.VERSION} TLS"
            super().start_node(node)

        def java_produce(self, *arguments: Any, **properties: Any) -> Any:
            more = {"security.protocol": "SSL", **ours}
            return super().java_produce(*arguments, **{**more, **properties})

    return EncryptedKafka


def encrypt_clients(certificates: Path) -> None:
    """Gives every client of librdkafka in this process the certificate."""
    import confluent_kafka.admin

    library: Any = confluent_kafka
    more = client_properties(certificates)

    def encrypted(client: Any) -> Any:
        class Encrypted(client):  # type: ignore[misc]
            def __init__(self, config: dict[str, Any], *arguments: Any, **options: Any) -> None:
                super().__init__({**more, **config}, *arguments, **options)

        return Encrypted

    library.Producer = encrypted(library.Producer)
    library.Consumer = encrypted(library.Consumer)
    admin = library.admin.AdminClient
    begin = admin.__init__
    # The class names itself in its methods, so it is changed and not replaced.
    admin.__init__ = lambda self, config, **options: begin(self, {**more, **config}, **options)


def main() -> None:
    """Command line; the script's own arguments follow ours, which the environment remembers."""
    if sys.argv[1:2] != ["--client"] and "KAFKA_TLS" not in os.environ:
        if len(sys.argv) < 3:
            sys.exit("usage: kafka_tls.py CERTIFICATES SCRIPT [ARGUMENT...]")
        os.environ["KAFKA_TLS"] = os.pathsep.join(
            str(Path(each).absolute()) for each in sys.argv[1:3]
        )
        sys.argv = [str(Path(__file__).absolute()), *sys.argv[3:]]
    certificates, script = map(Path, os.environ["KAFKA_TLS"].split(os.pathsep))
    module = load(script)
    module.common.python_packages("kafka", "confluent-kafka")
    encrypt_clients(certificates)
    module.Kafka = encrypted_cluster(module, certificates)
    if role := module.common.client_role():
        print(module.common.json.dumps(module.ROLES[role[0]](**role[1])))
    else:
        module.main()


if __name__ == "__main__":
    main()
