"""One round of each fault; `make faults` plays sixty at random."""

import io
import random

import fault_suite
import pytest
from fault_round import Result
from fault_suite import State, impossible_here, play_round, play_rounds
from faults import FAULTS
from rich.console import Console

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


def test_a_suite_continues_where_it_was_and_plays_failed_rounds_again(tmp_path, monkeypatch):
    played, failing, console = [], {3}, Console(file=io.StringIO())

    def play(name, folder, rng):
        played.append((int(folder.name), name, rng.random()))
        if len(played) in failing:
            raise AssertionError("boom")
        return Result(1.0, 64)

    monkeypatch.setattr(fault_suite, "play_round", play)
    for rounds in (5, 8):
        state = State(tmp_path / "state", seed=7)
        play_rounds(rounds, list(FAULTS), state, console)
        with (tmp_path / "state").open("a") as file:
            file.write('{"round": 7, "fau')  # the suite is killed in a write
    assert [number for number, _, _ in played] == [0, 1, 2, 3, 4, 2, 5, 6, 7]
    assert played[5] == played[2], "the same fault at the same moment"
    assert "round 3: " in (said := console.file.getvalue()) and said.count("FAILED") == 1
    table = fault_suite.report(State(tmp_path / "state", seed=1)).splitlines()
    assert len(table) == 2 + 8 and f"| {played[0][1]} | 1 | 1 | 1.00, 1.00 | 64, 64 |" in table
