"""Instructions of every kernel at one small shape are those that are stored: a change that costs is seen."""

import json
import shutil

import count_instructions
import pytest

# two runs here gave the same counts to the instruction; the room is for another patch of the compiler and for memcpy, whose
# way depends on where the system puts memory
TOLERANCE = 0.01
UPDATE = "python tests/kernels/count_instructions.py"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="needs valgrind")
def test_no_kernel_takes_more_instructions_than_stored():
    library = count_instructions.installed()
    if library is None:
        pytest.skip(f"needs the variant {count_instructions.VARIANT}: HOLDFAST_VARIANTS=all make install")
    stored = json.loads(count_instructions.STORED.read_text())
    if stored["compiler"] != count_instructions.compiler(library):
        pytest.skip(f"counts are of {stored['compiler']}, the library is of {count_instructions.compiler(library)}")
    counts = count_instructions.count(library)
    assert counts.keys() == stored["counts"].keys(), f"kernels were added or removed; {UPDATE}"
    more = {
        name: (now, stored["counts"][name])
        for name, now in counts.items()
        if now > stored["counts"][name] * (1 + TOLERANCE)
    }
    assert not more, (
        f"expected at most the stored counts and {TOLERANCE:.0%}, got (now, stored) {more}; where it pays, {UPDATE}"
    )
    fewer = [name for name, now in counts.items() if now < stored["counts"][name] * (1 - TOLERANCE)]
    assert not fewer, f"{fewer} take fewer instructions by now: keep it so with {UPDATE}"
