"""The workflow of dead letters: try, try later, give up, look, bring back.

    python examples/mail_sender.py run            # sends mails; a bad one is tried three times
    python examples/mail_sender.py letters        # what was given up, and why
    python examples/mail_sender.py bring-back     # once the cause is mended

How it works. What fails is delivered again after 1 s and 5 s, and holds up nothing else meanwhile.
After the third attempt it is a dead letter, which keeps its key, value and reason. `bring-back`
gives the letters to this group again, each at most once, however often it is called.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from semel.client import Client, Message, RetryPolicy, connect

TOPIC, GROUP = "mails", "mail-sender"
POLICY = RetryPolicy(steps_ms=(1_000, 5_000))


def main() -> None:
    parser = argparse.ArgumentParser(description="Sends mails, and gives up those that fail.")
    parser.add_argument("--bootstrap", help="controllers, HOST:PORT[,…]")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="send mails")
    run.add_argument("--outbox", type=Path, default=Path("outbox"), help="instead of a mail server")
    run.add_argument(
        "--idle-stop", type=float, default=86_400.0, help="end after so many seconds without a mail"
    )
    commands.add_parser("letters", help="show what was given up")
    commands.add_parser("bring-back", help="try dead letters again")
    arguments = parser.parse_args()

    with connect(arguments.bootstrap) as client:
        if arguments.command == "run":
            send_mails(client, arguments.outbox, arguments.idle_stop)
        elif arguments.command == "letters":
            for letter in client.admin.dead_letters(GROUP):
                recipient = (letter.key or b"").decode(errors="replace")
                back = " (brought back)" if letter.redriven else ""
                print(f"{recipient}: {letter.attempts} attempts, {letter.reason}{back}")
        else:
            result = client.admin.redrive(GROUP, to="group")
            print(f"brought back {result.redriven}, before that {result.already}")


def send_mails(client: Client, outbox: Path, idle_stop: float) -> None:
    client.admin.create_topic(TOPIC, queues=2, if_not_exists=True)
    with client.consumer(GROUP, TOPIC, retry=POLICY) as consumer:
        while messages := consumer.poll(timeout=idle_stop):
            for message in messages:
                try:
                    send_mail(message, outbox)
                except (OSError, UnicodeError) as error:
                    consumer.retry(message, reason=str(error))
            consumer.commit()


def send_mail(message: Message, outbox: Path) -> None:
    """Files the mail under its recipient. A second delivery writes the same file, so it is
    harmless: a commit may be lost after the mail is out."""
    recipient = (message.key or b"").decode("ascii")
    folder = outbox / recipient
    if not folder.is_dir():
        raise FileNotFoundError(f"no such recipient: {recipient}")
    origin = message.origin
    (folder / f"{origin.queue}-{origin.offset}.txt").write_bytes(message.value or b"")


if __name__ == "__main__":
    main()
