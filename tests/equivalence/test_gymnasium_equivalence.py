"""The contract on Gymnasium's environments: same seed, same run, whatever steps them."""

import shutil

import pytest
from helpers.equivalence import ALGORITHMS, digests, distance, sgd

CUE = dict(env_id="helpers.own_envs:Cue-v0", local_num_envs=8, total_timesteps=5 * 16 * 8)
SLOW = dict(env_options='{"delay": 0.005}')
PIXELS = CUE | dict(
    env_id="helpers.own_envs:Pixels-v0",
    env_options='{"grayscale": true, "frame_stack": 4}',
    network="mlp",  # its frames come the same way, and it compiles sooner
    num_steps=8,
    total_timesteps=3 * 8 * 8,
)


@pytest.mark.parametrize("which", ["ppo", pytest.param("impala", marks=pytest.mark.slow)])
def test_neither_stepping_nor_workers_nor_delays_change_a_bit(run, which):
    """Delays are in options, which the data digest does not cover."""
    flags = ALGORITHMS[which] | CUE | dict(concurrency=True, inference_batch=4)
    ways = [dict(env_stepping="sync", env_threads=n) for n in (1, 2)]
    ways += [dict(env_stepping="async", env_threads=n) | SLOW for n in (1, 2, 4, 4)]
    first, *others = [digests(run(**flags, **way)[1]) for way in ways]
    assert all(other == first for other in others) and len(set(first)) == 5


@pytest.mark.slow
def test_stacked_images_too(run):
    flags = PIXELS | dict(concurrency=True, inference_batch=4)
    sync, others = (digests(run(**flags, env_stepping=way)[1]) for way in ("sync", "async"))
    assert sync == others and len(set(sync)) == 3


def test_layouts_agree(run):
    flags = CUE | dict(local_num_envs=24, inference_batch=6, num_minibatches=2, total_timesteps=5 * 16 * 24)
    one, rows = run(sgd("ppo"), **flags)
    two, others = run(
        sgd("ppo"), **flags | dict(local_num_envs=12, num_actor_threads=2, learner_device_ids=(1, 2))
    )
    assert rows[0]["data_digest"] == others[0]["data_digest"]
    assert distance(one.model.params, two.model.params) < 1e-5


def test_a_resumed_run_goes_on_and_saves_and_evaluates(run, tmp_path):
    """And so does a copy of it, to the bit, with other workers."""
    short, _ = run(**CUE | dict(total_timesteps=2 * 16 * 8))
    copy = shutil.copytree(short.run_dir, tmp_path / "elsewhere" / short.run_dir.name)
    resumed, rows = run(**CUE, resume=str(short.run_dir), save_model=True)
    _, others = run(**CUE, env_threads=4, resume=str(copy))
    assert digests(others[:5]) == digests(rows[:5])
    assert [row["update"] for row in rows if "losses/loss" in row or "data_digest" in row] == [1, 2, 3, 4, 5]
    assert resumed.evaluation.scores()["episodic_length"] == 6


def test_it_is_learned(run):
    sizes = dict(local_num_envs=16, num_steps=16, total_timesteps=60 * 256, learning_rate=5e-3)
    learning = dict(gamma=0.5, anneal_lr=False, ent_coef=0.001, hiddens=(32,))
    _, rows = run(**CUE | sizes | learning)
    assert rows[-1]["charts/avg_episodic_return"] > 5
