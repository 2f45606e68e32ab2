"""A policy's memory against plain loops: step by step, and its gradient through time."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.specs import make_spec

from cleanba.agents.networks import make_agent
from cleanba.agents.recurrent import Core, Memory, empty_memory
from cleanba.cleanba_ppo import Args
from cleanba.envs.spec import ActionSpec, ArraySpec

VECTORS = make_spec("Vectors", (5,), np.float32, 3)
T, B, F, W = 7, 3, 2, 4
START = np.zeros((T, B), bool)
START[0, 0] = START[3, 1] = START[4, 1] = START[6, 2] = True
each_kind = pytest.mark.parametrize("kind", ["lstm", "gru"])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def plain_step(kind, params, x, hidden, cell):
    """One environment, one step, in float64: the gates one by one."""
    kernel, bias, recurrent = params["input"]["kernel"], params["input"]["bias"], params["recurrent"]
    width = len(hidden)
    from_x = [x @ kernel[:, i : i + width] + bias[i : i + width] for i in range(0, kernel.shape[1], width)]
    from_h = [hidden @ recurrent[:, i : i + width] for i in range(0, kernel.shape[1], width)]
    if kind == "lstm":
        enter, forget, new, leave = (a + b for a, b in zip(from_x, from_h, strict=True))
        cell = sigmoid(forget + 1) * cell + sigmoid(enter) * np.tanh(new)
        return sigmoid(leave) * np.tanh(cell), cell
    reset, keep = sigmoid(from_x[0] + from_h[0]), sigmoid(from_x[1] + from_h[1])
    return keep * hidden + (1 - keep) * np.tanh(from_x[2] + reset * from_h[2]), cell


def plain_loop(kind, params, x, memory, start):
    """hidden [T, B, W], and hidden and cell after the last row."""
    rows, (hidden, cell) = (
        np.zeros((*start.shape, memory.hidden.shape[1])),
        (np.array(m, float) for m in memory),
    )
    cell = cell if kind == "lstm" else np.zeros_like(hidden)
    for t, b in itertools.product(*map(range, start.shape)):
        if start[t, b]:
            hidden[b] = cell[b] = 0
        hidden[b], cell[b] = plain_step(kind, params, x[t, b], hidden[b], cell[b])
        rows[t, b] = hidden[b]
    return rows, hidden, cell


def core_and_inputs(kind, width=W):
    rng = np.random.default_rng(0)
    core, x = Core(kind, width, jnp.float32), rng.standard_normal((T, B, F)).astype(np.float32)
    memory = jax.tree.map(
        lambda zeros: rng.standard_normal(zeros.shape).astype(np.float32), empty_memory(kind, width, B)
    )
    params = jax.jit(core.init)(jax.random.key(0), x.reshape(T * B, F), memory, START)
    params = jax.tree.map(lambda p: p + 0.1 * rng.standard_normal(p.shape).astype(np.float32), params)
    return core, params, x, memory


@each_kind
def test_a_sequence_gives_what_a_plain_loop_gives(kind):
    core, params, x, memory = core_and_inputs(kind)
    hidden, after = jax.jit(core.apply)(params, x.reshape(T * B, F), memory, START)
    plain, last, cell = plain_loop(kind, jax.device_get(params["params"]), x, memory, START)
    np.testing.assert_allclose(hidden.reshape(T, B, W), plain, atol=1e-5)
    np.testing.assert_allclose(after.hidden, last, atol=1e-5)
    if kind == "lstm":
        np.testing.assert_allclose(after.cell, cell, atol=1e-5)


@each_kind
def test_the_gradient_through_time_is_that_of_a_plain_loop(kind):
    """One number of memory, so that each param can be moved up and down by hand."""
    core, params, x, memory = core_and_inputs(kind, width=1)

    def total(params):
        return jnp.sum(core.apply(params, x.reshape(T * B, F), memory, START)[0] ** 2)

    def plain_total(leaves):
        return np.sum(plain_loop(kind, jax.tree.unflatten(tree, leaves), x, memory, START)[0] ** 2)

    gradient = jax.tree.leaves(jax.jit(jax.grad(total))(params)["params"])
    leaves, tree = jax.tree.flatten(jax.tree.map(lambda p: np.asarray(p, np.float64), params["params"]))
    for leaf, found in zip(leaves, gradient, strict=True):
        for index in np.ndindex(leaf.shape):
            before, sides = leaf[index], []
            for side in (1e-4, -1e-4):
                leaf[index] = before + side
                sides.append(plain_total(leaves))
            leaf[index] = before
            assert found[index] == pytest.approx((sides[0] - sides[1]) / 2e-4, rel=1e-3, abs=1e-4)


def agent_and_inputs(kind, env=VECTORS, **flags):
    agent = make_agent(Args(recurrent=kind, recurrent_width=W, hiddens=(6,), **flags), env)
    rng = np.random.default_rng(1)
    obs = jax.tree.map(lambda spec: np.stack([spec.random(rng, B) for _ in range(T)]), env.obs)
    return agent, jax.jit(agent.init)(jax.random.key(0)), obs


IMAGE = ArraySpec((1, 12, 12), np.dtype(np.uint8))
MIXED = VECTORS._replace(obs={"image": IMAGE, "speed": ArraySpec((2,), np.dtype(np.float32))})
BOX = VECTORS._replace(action=ActionSpec.box(-np.ones(2), np.ones(2)))


@pytest.mark.parametrize(
    ("env", "flags"),
    [
        (VECTORS, {}),
        (VECTORS, dict(separate_critic=True, normalize_observations=True)),
        (MIXED, dict(channels=(2,))),
        (BOX, {}),
    ],
    ids=["vector", "separate critic", "images and vectors", "continuous"],
)
@each_kind
def test_the_learner_unrolls_what_the_actor_did_step_by_step(kind, env, flags):
    agent, published, obs = agent_and_inputs(kind, env, **flags)
    assert agent.has_memory
    first = state = jax.tree.map(lambda x: x + 0.5, agent.initial_state(B))
    steps, apply = [], jax.jit(agent.apply)
    for t in range(T):
        answer = apply(published, jax.tree.map(lambda x, t=t: x[t], obs), state, START[t])
        steps.append(answer[:2])
        state = answer[2]
    *unrolled, after = jax.jit(agent.unroll)(published, obs, first, START)
    by_step = jax.tree.map(lambda *rows: np.stack(rows), *steps)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), tuple(unrolled), by_step)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), after, state)


@each_kind
def test_a_sequence_cut_at_an_episodes_end_gives_the_sum_of_the_parts_gradients(kind):
    agent, published, obs = agent_and_inputs(kind)
    cut, start = 3, np.zeros((T, B), bool)
    start[cut] = True
    memory = jax.tree.map(lambda x: x + 0.5, agent.initial_state(B))

    def gradient(rows, memory):
        def total(params):
            policy, value, _ = agent.unroll(published._replace(params=params), obs[rows], memory, start[rows])
            return jnp.sum(value**2) + jnp.sum(policy.entropy())

        return jax.jit(jax.grad(total))(published.params)

    first, second = slice(0, cut), slice(cut, T)
    parts = jax.tree.map(jnp.add, gradient(first, memory), gradient(second, memory))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), gradient(slice(T), memory), parts)


def test_the_memory_before_an_episode_makes_no_difference_in_it():
    agent, published, obs = agent_and_inputs("lstm")
    old = jax.tree.map(lambda x: x + 9.0, agent.initial_state(B))
    fresh, starts = (
        agent.apply(published, obs[0], agent.initial_state(B), np.zeros(B, bool)),
        np.ones(B, bool),
    )
    again = agent.apply(published, obs[0], old, starts)
    jax.tree.map(np.testing.assert_array_equal, fresh, again)
    other = agent.apply(published, obs[0], old, ~starts)
    assert not np.allclose(other[1], fresh[1])


def test_the_memory_stays_float32_in_bfloat16():
    agent, published, obs = agent_and_inputs("lstm", compute_dtype="bfloat16")
    _, value, memory = agent.unroll(published, obs, agent.initial_state(B), START)
    assert isinstance(memory, Memory)
    assert {x.dtype for x in jax.tree.leaves((value, memory))} == {np.dtype(np.float32)}


def test_without_a_memory_there_is_no_state():
    agent = make_agent(Args(), VECTORS)
    assert not agent.has_memory and agent.initial_state(5) == ()
