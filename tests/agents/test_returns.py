"""GAE and V-trace against loops that see episodes, not rows: they drop the reset rows and never meet them."""

import numpy as np
import pytest

from cleanba.agents.returns import gae, vtrace


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


def random_columns(seed, steps=40, envs=3):
    """What both estimators take, [T, N] each, and `truncated`, which neither needs."""
    rng = np.random.default_rng(seed)
    columns = [make_sequence(rng, steps) for _ in range(envs)]
    terminated, truncated, valid = (np.stack(x, axis=1) for x in zip(*columns, strict=True))
    assert terminated.any() and truncated.any() and not valid.all()
    reward, value, log_rho = (rng.normal(size=(steps, envs)).astype(np.float32) for _ in range(3))
    last_value = rng.normal(size=envs).astype(np.float32)
    flags = dict(terminated=terminated, valid=valid)
    return dict(reward=reward, value=value, last_value=last_value, **flags), truncated, log_rho


@pytest.mark.parametrize("seed", range(20))
def test_against_a_loop_over_episodes(seed):
    x, truncated, _ = random_columns(seed)
    actual = gae(**x, gamma=0.9, gae_lambda=0.8)
    for e in range(3):
        flags = (x["terminated"][:, e], truncated[:, e], x["valid"][:, e])
        expected = gae_of_episodes(x["reward"][:, e], x["value"][:, e], x["last_value"][e], *flags, 0.9, 0.8)
        np.testing.assert_allclose(actual[:, e], expected, rtol=1e-4, atol=1e-5)
    assert (np.asarray(actual)[~x["valid"]] == 0).all()


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


# ------------------------------------------------------------------------------------------------- V-trace


def test_vtrace_by_hand():
    # gamma 0.5. Weights: 0.5, then 2 clipped to 1. Row 1 terminates, row 2 is the reset row, row 3 goes on.
    target, advantage = vtrace(
        reward=np.array([1.0, 2.0, 9.0, 4.0]),
        value=np.array([1.0, 1.0, 8.0, 3.0]),
        last_value=np.array(6.0),
        log_rho=np.log([0.5, 2.0, 7.0, 1.0]),
        terminated=np.array([False, True, False, False]),
        valid=np.array([True, True, False, True]),
        gamma=0.5,
    )
    # row 3: delta = 4 + 3 - 3 = 4, target 7;  row 1: delta = 2 - 1 = 1, target 2
    # row 0: delta = 0.5 (1 + 0.5 - 1) = 0.25, target 1 + 0.25 + 0.5 * 0.5 * 1 = 1.5
    np.testing.assert_allclose(target, [1.5, 2.0, 8.0, 7.0])
    # row 0: 0.5 (1 + 0.5 * 2 - 1) = 0.5
    np.testing.assert_allclose(advantage, [0.5, 1.0, 0.0, 4.0])


def vtrace_of_episodes(reward, value, last_value, log_rho, terminated, truncated, valid, gamma):
    """The definition: v_s = V(x_s) + sum_t gamma^(t-s) (prod_{i<t} c_i) delta_t, per episode."""
    steps = len(reward)
    values = np.append(value, last_value)
    target, advantage = values[:-1].copy(), np.zeros(steps)
    rho = np.minimum(1.0, np.exp(log_rho))
    episode = []
    for t in range(steps):
        if not valid[t]:
            continue
        episode.append(t)
        if not (terminated[t] or truncated[t] or t == steps - 1):
            continue
        after = 0.0 if terminated[t] else values[t + 1]  # of the final observation
        following = [*[values[s] for s in episode[1:]], after]
        delta = [
            rho[s] * (reward[s] + gamma * v - values[s]) for s, v in zip(episode, following, strict=True)
        ]
        for i, s in enumerate(episode):
            weight, total = 1.0, 0.0
            for k in range(i, len(episode)):
                total += weight * delta[k]
                weight *= gamma * rho[episode[k]]
            target[s] = values[s] + total
        next_targets = [*[target[s] for s in episode[1:]], after]
        for s, v in zip(episode, next_targets, strict=True):
            advantage[s] = rho[s] * (reward[s] + gamma * v - values[s])
        episode = []
    return target, advantage


@pytest.mark.parametrize("seed", range(20))
def test_vtrace_against_a_loop_over_episodes(seed):
    x, truncated, log_rho = random_columns(seed)
    target, advantage = vtrace(**x, log_rho=log_rho, gamma=0.9)
    for e in range(3):
        column = (a[:, e] for a in (log_rho, x["terminated"], truncated, x["valid"]))
        expected = vtrace_of_episodes(x["reward"][:, e], x["value"][:, e], x["last_value"][e], *column, 0.9)
        np.testing.assert_allclose(target[:, e], expected[0], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(advantage[:, e], expected[1], rtol=1e-4, atol=1e-5)


def episodes_of(column):
    """The rows of each episode in a sequence, without reset rows, and whether it terminated."""
    rows = []
    for t, (valid, terminated, truncated) in enumerate(column):
        if not valid:
            continue
        rows.append(t)
        if terminated or truncated or t == len(column) - 1:
            yield rows, bool(terminated)
            rows = []


@pytest.mark.parametrize("seed", range(5))
def test_vtrace_against_the_recursion(seed):
    """Remark 1 of Espeholt et al. 2018: v_s = V(x_s) + delta_s + gamma c_s (v_{s+1} - V(x_{s+1})), backwards
    through one episode. It knows no reset rows and no truncations, only what follows at its end."""
    x, truncated, log_rho = random_columns(seed)
    target, advantage = map(np.asarray, vtrace(**x, log_rho=log_rho, gamma=0.9))
    values = np.concatenate([x["value"], x["last_value"][None]])
    for e in range(3):
        column = zip(x["valid"][:, e], x["terminated"][:, e], truncated[:, e], strict=True)
        for rows, terminated in episodes_of(list(column)):
            after = 0.0 if terminated else values[rows[-1] + 1, e]
            v_next = value_next = after
            for s in reversed(rows):
                c = min(1.0, np.exp(log_rho[s, e]))
                delta = c * (x["reward"][s, e] + 0.9 * value_next - values[s, e])
                v = values[s, e] + delta + 0.9 * c * (v_next - value_next)
                policy_advantage = c * (x["reward"][s, e] + 0.9 * v_next - values[s, e])
                np.testing.assert_allclose(target[s, e], v, rtol=1e-4, atol=1e-5)
                np.testing.assert_allclose(advantage[s, e], policy_advantage, rtol=1e-4, atol=1e-5)
                v_next, value_next = v, values[s, e]


@pytest.mark.parametrize(
    ("terminated", "target", "advantage"),
    [
        (False, [0.91015625, -0.359375, -0.71875, 4.25, 2.5], [-0.08984375, -2.359375, 0.28125, 3.75, -0.5]),
        (True, [0.89453125, -0.421875, -0.84375, 3.25, 0.5], [-0.10546875, -2.421875, 0.15625, 2.75, -2.5]),
    ],
)
def test_vtrace_gives_the_numbers_of_rlax(terminated, target, advantage):
    """What `vtrace_td_error_and_advantage` of rlax 0.1.9 gave for this episode, all exact in float32."""
    actual = vtrace(
        reward=np.array([1.0, 0.0, -2.0, 3.0, 0.5]),
        value=np.array([1.0, 2.0, -1.0, 0.5, 3.0]),
        last_value=np.array(4.0),
        log_rho=np.log([0.5, 2.0, 0.25, 1.0, 4.0]),
        terminated=np.array([False, False, False, False, terminated]),
        valid=np.ones(5, bool),
        gamma=0.5,
    )
    np.testing.assert_allclose(actual.target, target, rtol=1e-6)
    np.testing.assert_allclose(actual.advantage, advantage, rtol=1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_on_policy_vtrace_is_gae_with_lambda_1(seed):
    x, _, log_rho = random_columns(seed)
    target, _ = vtrace(**x, log_rho=np.zeros_like(log_rho), gamma=0.9)
    expected = x["value"] + gae(**x, gamma=0.9, gae_lambda=1.0)
    np.testing.assert_allclose(target, expected, rtol=1e-4, atol=1e-5)
