"""Compresses the body of a batch and unpacks it: with Arrow where it is installed, else without.

`pack(data, codec)` returns a frame as bytes. `unpack(frame, codec, length)` returns a buffer with
what is in it, or raises CorruptBatch unless that is `length` bytes; it never unpacks more than
`length + 1` bytes. Both ways write the same bytes and take the same frames.

Not here: which codec a batch has (`batch.py`), the records of Kafka's clients (the gateway).
"""

from __future__ import annotations

from semel.protos.arrow import INSTALLED

if INSTALLED:
    from semel.protos.arrow_codecs import pack, unpack
else:
    from semel.protos.plain_codecs import pack, unpack

__all__ = ["pack", "unpack"]
