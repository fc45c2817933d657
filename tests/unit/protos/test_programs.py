"""What a process hands on to the program that it becomes."""

from __future__ import annotations

import os
import socket

from semel.protos.programs import keep_to_itself


def test_no_socket_is_handed_on() -> None:
    with socket.socket() as handed_on:
        os.set_inheritable(handed_on.fileno(), True)
        standard = [os.get_inheritable(number) for number in range(3)]
        keep_to_itself()
        assert not os.get_inheritable(handed_on.fileno())
        assert [os.get_inheritable(number) for number in range(3)] == standard
