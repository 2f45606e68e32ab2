"""One round of each fault; `make faults` plays sixty at random."""

import random

import pytest
from fault_suite import impossible_here, play_round
from faults import FAULTS

QUICK = {"kill in a checkpoint's write"}


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in FAULTS]
)
def test_a_run_survives(tmp_path, name):
    if reason := impossible_here(name):
        pytest.skip(reason)
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    play_round(name, tmp_path / "round", random.Random(seed))
