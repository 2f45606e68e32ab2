"""What travels with the params, in a job of two processes: merged from global sums, saved, broadcast. Its
slice in `make test` is in test_distributed_tasks.py."""

import numpy as np
import optax
import pytest
from helpers.equivalence import distance
from helpers.jobs import exit_codes, outputs
from helpers.normalizing import next_stats, normalizing_agent
from helpers.runs import read_rows
from safetensors.numpy import load_file

from cleanba import cleanba_ppo

TRAIN = """
import sys
from cleanba import cleanba_ppo
from cleanba.training.train import run_command
from helpers.normalizing import make_algorithm

run_command(cleanba_ppo.Args(), make_algorithm, description="", argv=sys.argv[1:])
"""
SIZES = "--env-id CartPole-v1 --num-steps 16 --num-minibatches 2 --inference-batch 6 --hiddens 16"


@pytest.mark.slow
def test_statistics_of_two_processes_are_those_of_one(run, start, tmp_path, monkeypatch):
    parts = dict(next_extra=next_stats, optimizer=optax.identity(), learning_rate=lambda update, extra: 0.01)
    monkeypatch.setattr(cleanba_ppo, "make_agent", normalizing_agent)
    sizes = dict(local_num_envs=24, num_minibatches=2, inference_batch=6, total_timesteps=4 * 16 * 24)
    alone, alone_rows = run(parts, **sizes)

    flags = [
        *SIZES.split(),
        "--local-num-envs",
        "12",
        "--num-actor-threads",
        "1",
        "--runs-dir",
        tmp_path / "job",
    ]
    job = start(2, *flags, "--total-timesteps", 2 * 16 * 24, script=TRAIN)
    assert exit_codes(job) == [0, 0], outputs(job)  # each update they compare digests, extra included
    (run_dir,) = (tmp_path / "job").iterdir()
    job = start(2, "--resume", run_dir, "--total-timesteps", 4 * 16 * 24, "--save-model", script=TRAIN)
    assert exit_codes(job) == [0, 0], outputs(job)  # process 1 has them from process 0
    rows = [row for row in read_rows(run_dir) if "update" in row]
    assert len(rows) == 4
    for mine, theirs in zip(alone_rows[:2], rows[:2], strict=True):
        assert mine["charts/avg_episodic_return"] == theirs["charts/avg_episodic_return"]
    assert rows[0]["data_digest"] == alone_rows[0]["data_digest"]
    saved = load_file(run_dir / "cleanba_ppo.cleanrl_model")
    assert saved["extra/count"] == pytest.approx(int(alone.model.extra.count), abs=24)  # other episodes since
    np.testing.assert_allclose(saved["extra/mean"], alone.model.extra.mean, atol=0.1)
    assert distance({"b": saved["params/Dense_0/bias"]}, {"b": np.zeros(16)}) > 1e-4, "SGD moved nothing"
