"""The scripts in benchmarks/: how they measure, and what they make of it."""

import os
import sys

import pytest
from helpers.runs import REPO

sys.path.insert(0, str(REPO / "benchmarks"))

import against_others
import speed

TINY = "--env-id CartPole-v1 --num-actor-threads 1 --local-num-envs 4 --num-steps 8 --hiddens 16"


def test_disturbed_rounds_do_not_count_if_there_are_quiet_ones():
    def rounds(*measured):
        return [
            {
                "SB3": dict(steps_per_second=theirs, others=0.0),
                "Cleanba": dict(steps_per_second=ours, others=others),
            }
            for theirs, ours, others in measured
        ]

    quiet = [(100.0, 120.0, 0.01), (200.0, 250.0, 0.02)]
    row = against_others.summary("sb3-nature", rounds(*quiet, (10.0, 90.0, 0.5)))
    assert (row["rival"], row["cleanba"], row["quiet"]) == (150.0, 185.0, 2)
    assert row["ratio"] == pytest.approx(185 / 150) and row["target"] == 1.15
    row = against_others.summary("sb3-nature", rounds((10.0, 90.0, 0.5)))
    assert (row["ratio"], row["quiet"]) == (9.0, 0)


def test_a_training_is_measured_from_outside():
    result = speed.run("ppo", TINY, rows=32, updates=6)
    assert result["updates"] == 4 and result["rows"] == 32
    assert 0 < result["first_update_seconds"] < 100 and 0.1 < result["peak_gib"] < 4
    assert result["steps_per_second"] > 0 and 0 < result["learning_seconds"] < 10


def test_no_training_is_left_behind(monkeypatch):
    started = []

    def interrupted(process_id):
        started.append(process_id)
        raise KeyboardInterrupt

    monkeypatch.setattr(speed, "resident_gib", interrupted)
    with pytest.raises(KeyboardInterrupt):
        speed.run("ppo", TINY, rows=32, updates=10**6)
    with pytest.raises(ProcessLookupError):
        os.kill(started[0], 0)


def test_the_output_of_a_failed_training_is_shown():
    with pytest.raises(
        SystemExit, match="(?s)--env-id Cart is not an EnvPool or Gymnasium environment.*failed: "
    ):
        speed.run("ppo", "--env-id Cart", rows=2**14, updates=1)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_default_run_on_a_cpu_needs_less_than_four_gibibytes(monkeypatch):
    """Two updates with the default sizes; one epoch has the same peak as four."""
    for name in ("JAX_NUM_CPU_DEVICES", "PJRT_NPROC"):
        monkeypatch.delenv(name, raising=False)
    assert 1 < speed.run("ppo", "--update-epochs 1", rows=16384, updates=2)["peak_gib"] < 4
