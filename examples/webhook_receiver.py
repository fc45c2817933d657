"""A receiver of web hooks: each event is stored once, however often its sender repeats it.

    python examples/webhook_receiver.py --listen 127.0.0.1:8080
    curl -H 'Webhook-Id: evt-17' -d '{"paid": true}' http://127.0.0.1:8080/

How it works. Senders of web hooks repeat a request until they get an answer, and give each event an
id. The topic compares ids, so any of several receivers may get the repetition. The answer is 200
for a new event and for one that is known, 409 for a known id with another content, and 503 when it
is not known whether the event is stored: the sender tries again.
"""

from __future__ import annotations

import argparse
import json
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from semel.client import IdDedup, Producer, connect
from semel.protos.errors import IdConflict, SemelError

BODY_BYTES_MAX = 256 * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description="Stores web hooks, each once.")
    parser.add_argument("--bootstrap", help="controllers, HOST:PORT[,…]")
    parser.add_argument("--topic", default="hooks")
    parser.add_argument("--listen", default="127.0.0.1:8080", metavar="HOST:PORT")
    arguments = parser.parse_args()
    host, _, port = arguments.listen.rpartition(":")

    with connect(arguments.bootstrap) as client:
        dedup = IdDedup(window_bytes=64 << 20)
        client.admin.create_topic(arguments.topic, queues=4, dedup=dedup, if_not_exists=True)
        with (
            client.producer(delivery_timeout_ms=10_000) as producer,
            Receiver((host, int(port)), producer, arguments.topic) as server,
        ):
            print("listening on http://{}:{}/".format(*server.server_address[:2]), flush=True)
            server.serve_forever()


class Receiver(ThreadingHTTPServer):
    """A server whose threads share one producer."""

    def __init__(self, address: tuple[str, int], producer: Producer, topic: str) -> None:
        super().__init__(address, Hook)
        self.producer = producer
        self.topic = topic


class Hook(BaseHTTPRequestHandler):
    """One request."""

    server: Receiver
    timeout = 10
    """Seconds that a sender may be silent."""

    def do_POST(self) -> None:
        size = self.headers.get("Content-Length", "")
        event_id = self.headers.get("Webhook-Id", "")
        if not size.isdecimal() or not event_id:
            self._answer(HTTPStatus.BAD_REQUEST, error="Webhook-Id and Content-Length are needed")
        elif int(size) > BODY_BYTES_MAX:
            self._answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, error=f"over {BODY_BYTES_MAX} bytes")
        else:
            self._store(event_id, self.rfile.read(int(size)))

    def _store(self, event_id: str, body: bytes) -> None:
        try:
            stored = self.server.producer.send(
                self.server.topic, body, message_id=event_id
            ).result()
        except IdConflict:
            self._answer(HTTPStatus.CONFLICT, error=f"{event_id} is known with another content")
        except SemelError as error:
            unknown = HTTPStatus.SERVICE_UNAVAILABLE
            self._answer(unknown if error.retriable else HTTPStatus.BAD_REQUEST, error=str(error))
        else:
            place = {"queue": stored.queue, "offset": stored.offset}
            self._answer(HTTPStatus.OK, **place, duplicate=stored.duplicate)

    def _answer(self, status: HTTPStatus, **answer: object) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    main()
