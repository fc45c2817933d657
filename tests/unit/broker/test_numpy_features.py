"""A broker's numpy does without AVX-512 where sorting with it is slow."""

from __future__ import annotations

import subprocess
import sys

from semel.broker.numpy_features import AVX_512, VARIABLE, choose, has_slow_sort

ZEN_4 = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nflags\t\t: fpu avx2 avx512f\n"


def test_it_is_slow_on_one_family_with_avx_512() -> None:
    assert has_slow_sort(ZEN_4 + "\n" + ZEN_4)
    assert not has_slow_sort(ZEN_4.replace(" avx512f", ""))
    assert not has_slow_sort(ZEN_4.replace("25", "26"))
    assert not has_slow_sort(ZEN_4.replace("AuthenticAMD", "GenuineIntel"))
    assert not has_slow_sort("")


def test_what_the_environment_says_counts() -> None:
    chosen: dict[str, str] = {}
    choose(chosen, ZEN_4)
    assert chosen == {VARIABLE: AVX_512}
    own = {VARIABLE: ""}
    choose(own, ZEN_4)
    assert own == {VARIABLE: ""}


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
