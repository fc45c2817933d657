"""An order service: totals of customers in SQL, and each order counted exactly once.

    python examples/order_service.py --database totals.db

How it works. The consumer's progress lives in the same database as the totals, and one SQL
transaction writes both. A crash between two transactions loses nothing and counts nothing twice,
and of two services that run at once each has queues of its own.

An order is JSON: {"customer": "anna", "cents": 1250}. Orders that cannot be read are rejected: they
become dead letters of the group.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
from contextlib import closing

from semel.client import Consumer, Message, RetryPolicy, SqlOffsets, connect

GROUP = "order-service"


def main() -> None:
    parser = argparse.ArgumentParser(description="Adds up orders in an SQL database.")
    parser.add_argument("--bootstrap", help="controllers, HOST:PORT[,…]")
    parser.add_argument("--topic", default="orders")
    parser.add_argument("--database", default="totals.db")
    parser.add_argument(
        "--idle-stop", type=float, default=86_400.0, help="end after so many seconds without orders"
    )
    arguments = parser.parse_args()

    store = SqlOffsets(lambda: sqlite3.connect(arguments.database))
    with (
        closing(sqlite3.connect(arguments.database)) as database,
        connect(arguments.bootstrap) as client,
    ):
        database.execute(
            "CREATE TABLE IF NOT EXISTS totals (customer TEXT PRIMARY KEY, orders INT, cents INT)"
        )
        database.commit()
        with client.consumer(
            GROUP, arguments.topic, offset_store=store, retry=RetryPolicy()
        ) as consumer:
            while messages := consumer.poll(timeout=arguments.idle_stop):
                with consumer.transaction(database):
                    for message in messages:
                        book(database, consumer, message)


def book(database: sqlite3.Connection, consumer: Consumer, message: Message) -> None:
    """Adds one order to its customer's total, or rejects it."""
    try:
        order = json.loads(message.value or b"")
        customer, cents = str(order["customer"]), int(order["cents"])
    except (ValueError, KeyError, TypeError) as error:
        consumer.reject(message, reason=f"not an order: {error}")
        return
    database.execute(
        "INSERT INTO totals VALUES (?, 1, ?) ON CONFLICT (customer)"
        " DO UPDATE SET orders = orders + 1, cents = cents + excluded.cents",
        (customer, cents),
    )


if __name__ == "__main__":
    main()
