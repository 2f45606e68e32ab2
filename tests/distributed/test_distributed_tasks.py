"""Continuous actions with normalization, in a job of two processes."""

import numpy as np
from helpers.jobs import exit_codes, outputs
from helpers.runs import read_rows
from safetensors.numpy import load_file

SIZES = dict(env_id="Pendulum-v1", num_steps=16, num_minibatches=2, inference_batch=6, update_epochs=1)
FLAGS = "--hiddens 16 --num-actor-threads 1 --env-threads 1 --normalize-observations --normalize-rewards"


def test_two_processes_have_the_statistics_of_one(run, start, tmp_path):
    """The first data to the bit, and the statistics that have acted twice up to reassociation."""
    normalized = dict(normalize_observations=True, normalize_rewards=True, local_num_envs=24)
    alone, alone_rows = run(**SIZES | normalized | dict(total_timesteps=3 * 16 * 24), save_model=True)
    flags = [word for name, value in SIZES.items() for word in (f"--{name.replace('_', '-')}", value)]
    flags += [*FLAGS.split(), "--local-num-envs", 12, "--total-timesteps", 3 * 16 * 24, "--save-model"]
    job = start(2, *flags, "--runs-dir", tmp_path / "job")
    assert exit_codes(job) == [0, 0], outputs(job)
    (run_dir,) = (tmp_path / "job").iterdir()
    assert read_rows(run_dir)[0]["data_digest"] == alone_rows[0]["data_digest"]
    one, two = (load_file(folder / "cleanba_ppo.cleanrl_model") for folder in (alone.run_dir, run_dir))
    statistics = [name for name in one if name.startswith("extra/")]
    assert len(statistics) == 6 and one["extra/obs/obs/rows"] == 3 * 16 * 24
    for name in statistics:
        np.testing.assert_allclose(two[name], one[name], rtol=1e-3, atol=1e-4, err_msg=name)
