"""A factory from Python: `train(args, make_algorithm, make_env=...)`."""

import re

import gymnasium
import numpy as np
import pytest
from helpers.equivalence import digests
from helpers.own_envs import Cue
from helpers.runs import read_rows
from helpers.specs import make_spec

import cleanba
from cleanba import cleanba_ppo
from cleanba.config.errors import UsageError
from cleanba.envs.gymnasium_envs import factory_of
from cleanba.evaluation.header import own_options
from cleanba.records.outcome import summary
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


def test_the_summary_says_how_to_evaluate_what_only_a_script_knows(train_with):
    options = '{"max_episode_steps": 2}'
    flags = dict(env_id="own/Cue", env_options=options, save_model=True, capture_video=True)
    said = summary(train_with(Cue, **flags, total_timesteps=64))
    assert "cleanba eval " not in said and '", make_env=Cue) evaluates the model' in said
    folder = re.search(r'cleanba.evaluate\("(.*)", make_env', said)[1]
    assert f"video: {folder}/replay.mp4" in said
    assert cleanba.evaluate(folder, 2, make_env=Cue).scores()["episodic_length"] == 2
    with pytest.raises(UsageError, match=r"allow them with env_options=\{'max_episode_steps': 2\}$"):
        cleanba.load(folder)
    with pytest.raises(UsageError, match="make_env is a class or function, not 'a:Cue'; for a name"):
        cleanba.load(folder, make_env="a:Cue")


def test_a_model_with_large_options_needs_them_named_even_for_a_class_of_the_users_own():
    env = make_spec("own/Cue", (3,), np.float32, 3)._replace(
        backend="gymnasium", options={"a": 1, "frame_stack": 9}
    )
    assert own_options(env) == env.options
    assert own_options(env._replace(options={"a": 1, "frame_stack": 10**9})) == {"a": 1}
    assert own_options(env._replace(options={"a": 1, "action_repeat": "1"})) == {"a": 1}
    assert own_options(env._replace(backend="envpool")) == {}


def test_a_class_with_registered_options_is_no_factory(train_with):
    for env_id, how in {"Plain-v0": {}, "Limited-v0": {"max_episode_steps": 3}}.items():
        gymnasium.register(env_id, entry_point=Cue, **how)
    assert (factory_of("Plain-v0"), factory_of("Limited-v0")) == ("Cue", "")
