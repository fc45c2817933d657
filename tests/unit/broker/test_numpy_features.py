"""A broker's numpy does without AVX-512 where sorting with it is slow."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version

from semel.broker.numpy_features import AVX_512, AVX_512_BEFORE, VARIABLE, choose, has_slow_sort

ZEN_4 = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nflags\t\t: fpu avx2 avx512f\n"


def test_it_is_slow_on_one_family_with_avx_512() -> None:
    assert has_slow_sort(ZEN_4 + "\n" + ZEN_4)
    assert not has_slow_sort(ZEN_4.replace(" avx512f", ""))
    assert not has_slow_sort(ZEN_4.replace("25", "26"))
    assert not has_slow_sort(ZEN_4.replace("AuthenticAMD", "GenuineIntel"))
    assert not has_slow_sort("")


def test_what_the_environment_says_counts() -> None:
    chosen: dict[str, str] = {}
    choose(chosen, ZEN_4, "2.4.6")
    assert chosen == {VARIABLE: AVX_512}
    own = {VARIABLE: ""}
    choose(own, ZEN_4, "2.4.6")
    assert own == {VARIABLE: ""}


def test_numpy_had_other_names_before() -> None:
    chosen: dict[str, str] = {}
    choose(chosen, ZEN_4, "2.3.5")
    assert chosen == {VARIABLE: AVX_512_BEFORE}


def test_this_numpy_knows_the_names() -> None:
    """It warns of those that it does not know."""
    chosen: dict[str, str] = {}
    choose(chosen, ZEN_4, version("numpy"))
    program = [sys.executable, "-W", "error", "-c", "import numpy"]
    done = subprocess.run(
        program, env={**os.environ, **chosen}, capture_output=True, text=True, check=False
    )
    # Without AVX-512 numpy says that there is nothing to switch off.
    assert not done.stderr or "not supported by your machine" in done.stderr, done.stderr


def test_a_broker_chooses_before_numpy_is_imported() -> None:
    """Nothing that `__main__` imports earlier may import numpy."""
    program = (
        "import sys\n"
        "class Watch:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'numpy':\n"
        "            print('semel.broker.numpy_features' in sys.modules)\n"
        "sys.meta_path.insert(0, Watch())\n"
        "import semel.broker.__main__\n"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert found.stdout.split()[0] == b"True"
