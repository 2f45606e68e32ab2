"""What travels with the params: running statistics of the observations, which the policy reads when it acts
and learns."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.equivalence import digests, distance, sgd
from helpers.normalizing import Stats, next_stats, normalizing_agent

from cleanba import cleanba_ppo
from cleanba.config.errors import UsageError
from cleanba.training.setup import make_setup

SIZES = dict(local_num_envs=24, num_minibatches=2, inference_batch=6, total_timesteps=5 * 16 * 24)


@pytest.fixture
def train(run, monkeypatch):
    monkeypatch.setattr(cleanba_ppo, "make_agent", normalizing_agent)
    return lambda parts=None, **flags: run(dict(next_extra=next_stats) | (parts or {}), **SIZES | flags)


def test_statistics_follow_the_data_and_are_used(train):
    outcome, rows = train()
    stats = outcome.model.extra
    resets = rows[-1]["stats/games"]  # each finished episode but those of the last step has a reset row
    assert 0 <= stats.count - (5 * 16 * 24 - resets) <= 24
    assert np.all(stats.squares > 0) and np.all(np.abs(stats.mean) < 1)
    _, unused = train(dict(next_extra=lambda published, rollout, metrics, global_sum: published.extra))
    assert unused[0]["data_digest"] == rows[0]["data_digest"]  # both begin without any
    assert unused[1]["data_digest"] != rows[1]["data_digest"]
    assert unused[0]["params_digest"] != rows[0]["params_digest"], "the digest does not cover them"


def test_the_same_command_gives_the_same_bits(train):
    assert digests(train(concurrency=True)[1]) == digests(train(concurrency=True)[1])


def test_layouts_agree(train):
    """Statistics are merged from global sums: exact counts, the rest up to float reassociation."""
    one, rows = train(sgd("ppo", scale=10))
    two, others = train(sgd("ppo", scale=10), learner_device_ids=(1, 2))
    assert rows[0]["data_digest"] == others[0]["data_digest"]
    assert one.model.extra.count == two.model.extra.count
    assert distance(one.model.params, two.model.params) < 1e-5
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), one.model.extra, two.model.extra)


def test_a_resumed_run_continues_with_them(train):
    short, _ = train(total_timesteps=2 * 16 * 24)
    resumed, rows = train(resume=str(short.run_dir), total_timesteps=3 * 16 * 24)
    assert resumed.run_dir == short.run_dir and [row["update"] for row in rows] == [1, 2, 3]
    added = resumed.model.extra.count - short.model.extra.count
    assert 16 * 24 - 40 < added <= 16 * 24


def test_the_learning_rate_may_depend_on_them(train):
    """Here it falls with the number of rows that were seen."""
    _, rows = train(dict(learning_rate=lambda update, extra: 1e-3 / (1 + int(extra.count))))
    rates = [row["charts/learning_rate"] for row in rows]
    assert rates[0] == pytest.approx(1e-3) and rates[1] == pytest.approx(1e-3 / (16 * 24 + 1), rel=0.1)


def test_the_gradient_is_by_the_params_alone(train):
    """An extra that the loss depends on does not move by itself."""
    keep = dict(next_extra=lambda published, rollout, metrics, global_sum: published.extra)
    outcome, _ = train(keep)
    assert outcome.model.extra.count == 0 and not np.any(outcome.model.extra.mean)
    assert jax.tree.structure(outcome.model.extra) == jax.tree.structure(Stats(0, 0, 0))


def give(change):
    """A next_extra that changes what it was given."""
    return dict(next_extra=lambda published, rollout, metrics, global_sum: change(published.extra, metrics))


@pytest.mark.parametrize(
    ("extra", "change", "message"),
    [
        ({"beta": 1.0}, lambda old, _: {"b": old["beta"]}, "next_extra gives b, init gave beta$"),
        ({"beta": 1.0}, lambda old, _: {}, "next_extra gives nothing for beta, init gave beta$"),
        ({"beta": 1.0}, lambda old, _: old | {"b": 1}, "gives b, init gave none of that name$"),
        ({"beta": 1.0}, lambda old, m: {"beta": m["kl"] * jnp.ones(3)}, r"beta as float32 \(3,\), .* \(\)$"),
        (
            {"beta": 1.0},
            lambda old, _: {"beta": jnp.int32(2)},
            r"beta as int32 \(\), init gave float32 \(\)$",
        ),
        ((1.0,), lambda old, _: list(old), r"gives PyTreeDef\(\[\*\]\), init gave PyTreeDef\(\(\*,\)\)$"),
    ],
)
def test_another_extra_than_the_first_is_found_before_the_first_update(extra, change, message, tmp_path):
    parts = give(lambda old, metrics: change(old, {"kl": metrics["approx_kl"]}))
    args = cleanba_ppo.Args(env_id="CartPole-v1", local_num_envs=4, hiddens=(4,), runs_dir=str(tmp_path))

    def make_algorithm(*inputs):
        made = cleanba_ppo.make_algorithm(*inputs)
        first = jax.tree.map(jnp.float32, extra)
        return made._replace(init=lambda key: made.init(key)._replace(extra=first), **parts)

    with pytest.raises(UsageError, match=message):
        make_setup(args, make_algorithm)


def test_an_extra_of_one_learner_is_found_before_the_first_update(run, tmp_path):
    mean = dict(next_extra=lambda published, rollout, metrics, global_sum: rollout.reward.mean())
    with pytest.raises(UsageError, match="next_extra gives something of .*; put it through global_sum"):
        run(mean)
    assert not list(tmp_path.iterdir())


def test_a_metric_that_is_not_there_is_found_before_the_first_update(run, tmp_path):
    with pytest.raises(KeyError, match="kll"):
        run(give(lambda old, metrics: metrics["kll"]))
    assert not list(tmp_path.iterdir())
