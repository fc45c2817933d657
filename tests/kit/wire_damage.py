"""Damage that a decoder must notice: every cut and every flipped bit, by the one right error."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from semel.protos.errors import SemelError


def flips(data: bytes, start: int = 0, stop: int | None = None) -> Iterator[tuple[str, bytes]]:
    """`data` with each bit of `[start, stop)` flipped, and each byte set to 0 and to 0xFF."""
    for at in range(start, len(data) if stop is None else stop):
        others = {data[at] ^ (1 << bit) for bit in range(8)} | {0, 0xFF}
        for byte in sorted(others - {data[at]}):
            yield f"byte {at} = {byte:#x}", data[:at] + bytes((byte,)) + data[at + 1 :]


def cuts(data: bytes) -> Iterator[tuple[str, bytes]]:
    """`data` cut at every byte, and with something behind it."""
    for end in range(len(data)):
        yield f"cut at {end}", data[:end]
    yield "one byte more", data + b"\0"
    yield "twice", data + data


def unnoticed(
    decode: Callable[[bytes], object],
    error: type[SemelError],
    damaged: Iterator[tuple[str, bytes]],
) -> list[str]:
    """The damaged inputs that `decode` accepted, or answered with another error than `error`."""
    missed: list[str] = []
    for name, data in damaged:
        try:
            decode(data)
        except error:
            continue
        except BaseException as other:
            missed.append(f"{name}: {other!r}")
        else:
            missed.append(f"{name}: accepted")
    return missed
