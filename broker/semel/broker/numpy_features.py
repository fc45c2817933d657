"""Which of the processor's features numpy does without in a broker; import it before numpy.

How it works. numpy sorts numbers with AVX-512 where the processor has that. AMD's of family 25 have
it (Zen 4), but take a hundred cycles to store what was chosen of a vector, which this way of
sorting does all the time: two million ids take 65 ns each, with AVX2 13. numpy reads what it should
not use from the environment, when it is imported, and knows no other way. Its names for AVX-512
changed with version 2.4, and it warns of those that it does not know.

Not here: what is sorted (`dedup/sorted_ids.py`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import MutableMapping
from importlib.metadata import version
from pathlib import Path
from typing import Final

VARIABLE: Final = "NPY_DISABLE_CPU_FEATURES"
AVX_512: Final = "X86_V4 AVX512_ICL AVX512_SPR"
AVX_512_BEFORE: Final = "AVX512F AVX512_SKX AVX512_ICL AVX512_SPR"
"""The same up to numpy 2.3."""
_VENDOR: Final = "AuthenticAMD"
_FAMILY: Final = "25"


def has_slow_sort(cpuinfo: str) -> bool:
    """Whether sorting with AVX-512 is slow on the processor that /proc/cpuinfo describes."""
    first = cpuinfo.split("\n\n", 1)[0]
    fields = {
        name.strip(): value.strip()
        for name, _, value in (line.partition(":") for line in first.splitlines())
    }
    return (
        fields.get("vendor_id") == _VENDOR
        and fields.get("cpu family") == _FAMILY
        and "avx512f" in fields.get("flags", "").split()
    )


def choose(environment: MutableMapping[str, str], cpuinfo: str, numpy: str) -> None:
    """Has numpy, whose version is given, leave AVX-512 alone if that is slow, unless the
    environment says what to leave."""
    if VARIABLE not in environment and has_slow_sort(cpuinfo):
        major, minor = map(int, numpy.split(".")[:2])
        environment[VARIABLE] = AVX_512 if (major, minor) >= (2, 4) else AVX_512_BEFORE


with contextlib.suppress(OSError, UnicodeDecodeError):  # there is no such file: no Linux
    choose(os.environ, Path("/proc/cpuinfo").read_text(), version("numpy"))
