"""A factory from Python: `train(args, make_algorithm, make_env=...)`."""

import gymnasium
import pytest
from helpers.equivalence import digests
from helpers.own_envs import Cue
from helpers.runs import read_rows

from cleanba import cleanba_ppo
from cleanba.config.errors import UsageError
from cleanba.training.train import train


@pytest.fixture
def train_with(tmp_path):
    def train_with(make_env, **flags):
        sizes = dict(local_num_envs=4, num_actor_threads=1, num_steps=16, hiddens=(16,), env_threads=2)
        sizes |= dict(runs_dir=str(tmp_path), total_timesteps=3 * 64)
        args = cleanba_ppo.Args(**sizes | flags)
        return train(args, cleanba_ppo.make_algorithm, make_env=make_env)

    before = dict(gymnasium.registry)  # factories stay registered
    yield train_with
    gymnasium.registry.clear()
    gymnasium.registry.update(before)


def test_a_factory_is_the_same_as_a_registered_class(train_with):
    registered = train_with(None, env_id="helpers.own_envs:Cue-v0")
    shift = 0.0
    made = train_with(lambda **options: Cue(delay=shift, **options), env_id="mine", save_model=True)
    assert digests(read_rows(made.run_dir)[:3]) == digests(read_rows(registered.run_dir)[:3])
    assert made.model.env[:2] == ("gymnasium", "mine") and made.evaluation.scores()["episodic_length"] == 6
    resumed = train_with(Cue, env_id="mine", resume=str(made.run_dir), total_timesteps=4 * 64)
    assert resumed.last_row["update"] == 4


def test_it_goes_before_whatever_has_that_name_and_gets_the_options(train_with):
    got = []

    def make(**options):
        got.append(options)
        return Cue(**options)

    options = '{"delay": 0.0, "max_episode_steps": 2}'
    outcome = train_with(make, env_id="Breakout-v5", env_options=options, total_timesteps=64)
    assert got[0] == {"delay": 0.0}
    assert outcome.last_row["charts/avg_episodic_length"] == 2


def test_what_it_makes_must_be_an_environment(train_with):
    with pytest.raises(UsageError, match="--env-id mine .*must inherit from the gymnasium.Env class"):
        train_with(lambda: object(), env_id="mine")
