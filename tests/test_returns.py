"""GAE against a loop that sees episodes, not rows: it drops the reset rows and never meets them."""

import numpy as np
import pytest

from cleanba.sebulba.returns import gae


def test_by_hand():
    # gamma 0.5, lambda 0.5. Row 1 terminates; row 2 is the reset row; row 3 is cut off by the rollout's end.
    advantage = gae(
        reward=np.array([1.0, 2.0, 9.0, 4.0]),
        value=np.array([1.0, 2.0, 8.0, 3.0]),
        last_value=np.array(6.0),
        terminated=np.array([False, True, False, False]),
        valid=np.array([True, True, False, True]),
        gamma=0.5,
        gae_lambda=0.5,
    )
    # row 3: 4 + 0.5 * 6 - 3 = 4;  row 1: 2 - 2 = 0;  row 0: 1 + 0.5 * 2 - 1 + 0.25 * 0 = 1
    np.testing.assert_allclose(advantage, [1.0, 0.0, 0.0, 4.0])


def test_a_truncated_episode_bootstraps_from_its_final_observation():
    # Row 0 is truncated, so row 1 is the reset row and its value, 10, is that of the final observation.
    advantage = gae(
        reward=np.array([1.0, 0.0, 2.0]),
        value=np.array([3.0, 10.0, 5.0]),
        last_value=np.array(0.0),
        terminated=np.array([False, False, True]),
        valid=np.array([True, False, True]),
        gamma=0.5,
        gae_lambda=0.9,
    )
    np.testing.assert_allclose(advantage, [1 + 0.5 * 10 - 3, 0.0, 2 - 5])


def make_sequence(rng, steps):
    """Random episodes as EnvPool gives them: after a terminated or truncated row comes a reset row. A lost
    life is a termination in the middle of a game; also then a reset row follows."""
    terminated, truncated, valid = (np.zeros(steps, bool) for _ in range(3))
    done = rng.random() < 0.3  # the rollout before may have ended with an episode
    for t in range(steps):
        valid[t] = not done
        ends = valid[t] and rng.random() < 0.25
        terminated[t] = ends and rng.random() < 0.6
        truncated[t] = ends and not terminated[t]
        done = ends
    return terminated, truncated, valid


def gae_of_episodes(reward, value, last_value, terminated, truncated, valid, gamma, lam):
    """The definition, per episode: A_t = sum_k (gamma lambda)^k delta_{t+k}."""
    steps = len(reward)
    values = np.append(value, last_value)
    advantage = np.zeros(steps)
    episode = []
    for t in range(steps):
        if not valid[t]:
            continue
        bootstrap = 0.0 if terminated[t] else values[t + 1]
        episode.append((t, reward[t] + gamma * bootstrap - value[t]))
        if terminated[t] or truncated[t] or t == steps - 1:
            for i, (start, _) in enumerate(episode):
                rest = episode[i:]
                advantage[start] = sum((gamma * lam) ** k * delta for k, (_, delta) in enumerate(rest))
            episode = []
    return advantage


@pytest.mark.parametrize("seed", range(20))
def test_against_a_loop_over_episodes(seed):
    rng = np.random.default_rng(seed)
    steps, envs = 40, 3
    columns = [make_sequence(rng, steps) for _ in range(envs)]
    terminated, truncated, valid = (np.stack(x, axis=1) for x in zip(*columns, strict=True))
    assert terminated.any() and truncated.any() and not valid.all()
    reward = rng.normal(size=(steps, envs)).astype(np.float32)
    value = rng.normal(size=(steps, envs)).astype(np.float32)
    last_value = rng.normal(size=envs).astype(np.float32)
    expected = np.stack(
        [
            gae_of_episodes(
                reward[:, e],
                value[:, e],
                last_value[e],
                terminated[:, e],
                truncated[:, e],
                valid[:, e],
                0.9,
                0.8,
            )
            for e in range(envs)
        ],
        axis=1,
    )
    actual = gae(
        reward=reward,
        value=value,
        last_value=last_value,
        terminated=terminated,
        valid=valid,
        gamma=0.9,
        gae_lambda=0.8,
    )
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
    assert (np.asarray(actual)[~valid] == 0).all()


def test_what_stands_in_a_reset_row_does_not_matter():
    rng = np.random.default_rng(0)
    inputs = dict(
        reward=rng.normal(size=6),
        value=rng.normal(size=6),
        last_value=np.array(1.0),
        terminated=np.array([False, True, False, False, False, False]),
        valid=np.array([True, True, False, True, True, True]),
        gamma=0.9,
        gae_lambda=0.8,
    )
    before = gae(**inputs)
    inputs["reward"] = inputs["reward"].copy()
    inputs["reward"][2] = 1e6
    inputs["value"] = inputs["value"].copy()
    inputs["value"][2] = -1e6  # the episode before it terminated: nobody bootstraps from it
    np.testing.assert_array_equal(before, gae(**inputs))
