"""Native vector environments of Gymnasium, which step many environments in one call."""

import json
import os
import signal
from contextlib import closing

import numpy as np
import pytest
from helpers.equivalence import digests
from helpers.leftovers import children, still_running

from cleanba.cleanba_ppo import Args
from cleanba.config.errors import EnvError, UsageError
from cleanba.envs.factory import env_spec, make_envs
from cleanba.evaluation.evaluate import evaluate
from cleanba.evaluation.model import load_model

CUE, ODD, FAULTY = (f"helpers.own_envs:{name}-v0" for name in ("Cue", "Odd", "Faulty"))
VECTOR = dict(vectorization_mode="vector_entry_point")


def spec(env_id=CUE, **options):
    return env_spec(Args(env_id=env_id, env_backend="gymnasium", env_options=json.dumps(options)))


def play(env, steps=15, *, batch=None, seeds=(5, 6, 7, 8)):
    """Rows of each environment."""
    rows = {e: [] for e in range(len(seeds))}
    with closing(make_envs(env, list(seeds), 3, batch=batch)) as envs:
        envs.reset()
        while any(len(x) < steps for x in rows.values()):
            step = envs.receive()
            for i, e in enumerate(step.env.tolist()):
                rows[e].append([x[i].tolist() for x in step[2:]] + [step.obs[i].tolist()])
            envs.send(step.env % 3, step.env)
    return {e: x[:steps] for e, x in rows.items()}


@pytest.mark.parametrize("batch", [None, 2, 1])
def test_rows_are_those_of_single_environments(batch):
    """With ends, truncations and reset rows. In batches, each is a vector environment of its own."""
    assert play(spec(**VECTOR), batch=batch) == play(spec())


def test_gymnasium_s_own_and_a_scale_of_rewards():
    before = children()
    env = spec("CartPole-v1", reward_scale=0.5, **VECTOR)
    with closing(make_envs(env, range(6), 2)) as envs:
        envs.reset()
        first = envs.receive()
        envs.send(np.zeros(6, np.int32), first.env)
        step = envs.receive()
    assert children() <= before and not np.array_equal(first.obs[0], first.obs[1])
    assert step.env.tolist() == [0, 1, 2, 3, 4, 5]
    assert (step.reward == 0.5).all() and (step.raw_reward == 1.0).all()


def test_spaces_of_every_kind():
    env = spec(ODD, **VECTOR)
    assert env[3:] == spec(ODD)[3:]
    with closing(make_envs(env, [1, 2], 2)) as envs:
        envs.reset()
        first = envs.receive()
        assert first.obs["a/b"].tolist() == [[0, 1, 0]] * 2
        envs.send(np.array([[0, 1, 2, 9], [-9, 0, 0, 0]], np.float32), first.env)
        assert envs.receive().obs["c"].tolist() == [[[0, 1], [2, 2]], [[-1, 0], [0, 0]]]


def test_an_id_that_has_nothing_else_needs_no_option():
    assert play(spec("helpers.own_envs:OnlyTogether-v0")) == play(spec())


@pytest.mark.parametrize(
    ("env_id", "options", "problem"),
    [
        ("helpers.own_envs:Pixels-v0", {}, "has no vector entry point; leave vectorization_mode out"),
        (CUE, dict(frame_stack=4), "frame_stack is for single environments; the vector environment of Cue"),
        (CUE, dict(mode="SameStep"), "autoreset mode AutoresetMode.SAME_STEP, which .* needs .*NEXT_STEP"),
        (CUE, dict(wind=3), "unexpected keyword argument 'wind'"),
        (CUE, dict(vectorization_mode="sync"), 'is "sync"; give a value like .vector_entry_point'),
    ],
)
def test_what_cannot_work_is_refused(env_id, options, problem):
    with pytest.raises(UsageError, match=problem):
        spec(env_id, **VECTOR | options)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("raises", "2 of .* failed while taking a step with all others (?s:.*)ValueError: a bad step"),
        (
            "raises in reset",
            "2 of .* failed while being reset with all others (?s:.*)ValueError: a bad start",
        ),
        ("is killed", "2 of .* has ended its worker process, which was killed by SIGKILL"),
        ("NaN", r"\d of .* gives observations that are not finite at its first steps"),
    ],
)
def test_a_failure_names_one_of_them_and_ends_all(fault, says):
    """The first of its vector environment."""
    before = children()
    with pytest.raises(EnvError, match="environment " + says):
        play(spec(FAULTY, fault=fault, **VECTOR), batch=1, seeds=(2, 4, 7))
    assert not still_running(before, seconds=10)


def test_one_that_somebody_kills_is_noticed():
    before = children()
    with closing(make_envs(spec(**VECTOR), range(4), 1)) as envs:
        envs.reset()
        envs.receive()
        os.kill(max(children() - before), signal.SIGKILL)
        with pytest.raises(EnvError, match="has (lost|ended) its worker process.*SIGKILL"):
            envs.receive()


def test_a_run_is_that_of_single_environments_saved_evaluated_and_resumed(run):
    """Bit by bit, in sync and async; a video needs a vector environment that renders."""
    flags = dict(env_id=CUE, local_num_envs=8, inference_batch=4, concurrency=True)
    flags |= dict(total_timesteps=3 * 16 * 8)
    together = flags | dict(env_options=json.dumps(VECTOR))
    one, rows = run(**flags)
    for stepping in ("sync", "async"):
        outcome, others = run(**together, env_stepping=stepping, save_model=True)
        assert digests(others[:3]) == digests(rows[:3])
    assert outcome.evaluation.scores() == evaluate(one.model, episodes=10, seed=1).scores()
    resumed, _ = run(**together | dict(total_timesteps=4 * 16 * 8), resume=str(outcome.run_dir))
    assert resumed.last_row["update"] == 4
    with pytest.raises(UsageError, match='options that no preset has.*"vectorization_mode"'):
        load_model(outcome.saved, env_id=CUE)
    assert load_model(outcome.saved, env_id=CUE, env_options=VECTOR).env == outcome.model.env
