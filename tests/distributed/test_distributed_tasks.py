"""Continuous actions with normalization, and Gymnasium's environments, in a job of two processes."""

import numpy as np
import pytest
from helpers.jobs import exit_codes, outputs
from helpers.runs import read_rows
from safetensors.numpy import load_file

SIZES = dict(env_id="Pendulum-v1", num_steps=16, num_minibatches=2, inference_batch=6, update_epochs=1)
FLAGS = "--hiddens 16 --num-actor-threads 1 --env-threads 1 --normalize-observations --normalize-rewards"


@pytest.mark.slow
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


CUE = dict(env_id="helpers.own_envs:Cue-v0", num_steps=16, inference_batch=4, env_threads=2, hiddens=(16,))


@pytest.mark.slow
def test_gymnasium_s_environments_do_not_know_which_process_steps_them(run, start, tmp_path):
    """Two processes with 8 environments each, delayed at random, see what one with 16 sees, to the bit; and
    the params that have learned from it are the same up to reassociation."""
    sizes = CUE | dict(num_minibatches=2, update_epochs=1, learning_rate=1e-5)
    alone, rows = run(**sizes, local_num_envs=16, total_timesteps=3 * 16 * 16, save_model=True)
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in sizes.items() if name != "hiddens"]
    flags += ["--hiddens=16", "--num-actor-threads=1", "--local-num-envs=8", "--env-stepping=async"]
    flags += ["--env-options", '{"delay": 0.002}', f"--total-timesteps={3 * 16 * 16}", "--save-model"]
    job = start(2, *flags, "--runs-dir", tmp_path / "job")
    assert exit_codes(job) == [0, 0], outputs(job)
    (run_dir,) = (tmp_path / "job").iterdir()
    assert [x["data_digest"] for x in read_rows(run_dir)[:2]] == [x["data_digest"] for x in rows[:2]]
    one, two = (load_file(folder / "cleanba_ppo.cleanrl_model") for folder in (alone.run_dir, run_dir))
    for name in one:
        np.testing.assert_allclose(two[name], one[name], atol=1e-5, err_msg=name)
