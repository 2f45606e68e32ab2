"""What travels with the params: running statistics of the observations, which the policy reads when it acts
and learns."""

import jax
import numpy as np
import pytest
from helpers.equivalence import digests, distance, sgd
from helpers.normalizing import Stats, next_stats, normalizing_agent

from cleanba import cleanba_ppo

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
