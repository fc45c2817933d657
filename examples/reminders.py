"""A reminder service: messages that come at their time, and can be taken back before.

    python examples/reminders.py add tea-7 "tea is ready" --after 300
    python examples/reminders.py cancel tea-7
    python examples/reminders.py show

How it works. A reminder is a delayed message with an id. The brokers store it like any other and
give it to readers when it is due, once. The topic compares ids, so adding a reminder again (after
an answer was lost, say) changes nothing, and an id finds the message that is to be taken back.
"""

from __future__ import annotations

import argparse
import time

from semel.client import Client, IdDedup, connect

TOPIC = "reminders"


def main() -> None:
    parser = argparse.ArgumentParser(description="Reminds of things when it is time.")
    parser.add_argument("--bootstrap", help="controllers, HOST:PORT[,…]")
    commands = parser.add_subparsers(dest="command", required=True)
    add = commands.add_parser("add", help="store a reminder")
    add.add_argument("id")
    add.add_argument("text")
    add.add_argument("--after", type=float, required=True, metavar="SECONDS")
    commands.add_parser("cancel", help="take one back").add_argument("id")
    show = commands.add_parser("show", help="print reminders as they become due")
    show.add_argument("--count", type=int, help="end after so many")
    arguments = parser.parse_args()

    with connect(arguments.bootstrap) as client:
        client.admin.create_topic(
            TOPIC, queues=1, dedup=IdDedup(window_bytes=64 << 20), if_not_exists=True
        )
        if arguments.command == "add":
            remind(client, arguments.id, arguments.text, arguments.after)
        elif arguments.command == "cancel":
            print(client.admin.cancel(TOPIC, arguments.id).result)
        else:
            print_reminders(client, arguments.count)


def remind(client: Client, name: str, text: str, seconds: float) -> None:
    """Stores a reminder that comes in `seconds`."""
    with client.producer() as producer:
        stored = producer.send(TOPIC, text.encode(), message_id=name, deliver_after=seconds)
        print("known already" if stored.result().duplicate else f"in {seconds:g} s")


def print_reminders(client: Client, count: int | None) -> None:
    """Prints reminders as they become due. What was printed is committed; after a crash at most the
    newest one is printed again."""
    shown = 0
    with client.consumer("reminders", TOPIC) as consumer:
        for message in consumer:
            text = (message.value or b"").decode(errors="replace")
            print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)
            consumer.commit(message)
            shown += 1
            if shown == count:
                return


if __name__ == "__main__":
    main()
