import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.specs import make_spec

from cleanba.agents.agent import act
from cleanba.agents.algorithm import Published
from cleanba.agents.distributions import Categorical, DiagonalGaussian
from cleanba.agents.networks import Impala, Nature, make_agent
from cleanba.cleanba_ppo import Args
from cleanba.config.errors import UsageError
from cleanba.envs.spec import ActionSpec, ArraySpec, EnvSpec

IMAGES = make_spec("Images", (4, 84, 84), np.uint8, 6)
VECTORS = make_spec("Vectors", (5,), np.float32, 3)
SMALL = dict(channels=(4, 4), hiddens=(16,))


def random_images(rows, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (rows, *IMAGES.obs.shape), dtype=np.uint8)


@functools.cache
def small_policy(dtype="float32"):
    """With its initial params."""
    policy = make_agent(Args(compute_dtype=dtype, **SMALL), IMAGES)
    return policy, jax.jit(policy.init)(jax.random.key(0))


@pytest.mark.parametrize(("name", "env"), [("impala", IMAGES), ("nature", IMAGES), ("mlp", VECTORS)])
def test_weights_start_orthogonal_but_for_the_impala_networks_convolutions(name, env):
    policy = make_agent(Args(network=name), env)
    params = jax.jit(policy.init)(jax.random.key(0)).params["params"]
    if name == "impala":
        assert_lecun_normal(params.pop("torso"))
    heads = sorted(k for k in params if k.startswith("Dense"))[-2:]
    for path, kernel in jax.tree_util.tree_leaves_with_path(params):
        if kernel.ndim < 2:
            assert (kernel == 0).all()  # biases
            continue
        layer = next(p.key for p in path if p.key.startswith(("Dense", "Conv", "torso")))
        scale = {heads[0]: 0.01, heads[1]: 1.0}.get(layer, np.sqrt(2))
        matrix = kernel.reshape(-1, kernel.shape[-1])
        gram = matrix.T @ matrix if matrix.shape[0] >= matrix.shape[1] else matrix @ matrix.T
        np.testing.assert_allclose(gram, scale**2 * np.eye(len(gram)), atol=1e-4 * max(1, scale**2))


def assert_lecun_normal(convolutions):
    """Variance 1 / fan-in, cut off at two standard deviations (of the normal distribution before the cut)."""
    for layer in convolutions.values():
        assert (layer["bias"] == 0).all()
        kernel = np.asarray(layer["kernel"]) * np.sqrt(np.prod(layer["kernel"].shape[:3]))
        np.testing.assert_allclose(kernel.std(), 1, atol=5 / np.sqrt(kernel.size))
        assert abs(kernel).max() < 2 / 0.87962566 + 1e-6


@pytest.mark.parametrize("name", ["impala", "nature"])
def test_signals_keep_their_scale_through_the_network(name):
    """Orthogonal √2 in the IMPALA network's convolutions: activations grow 28 times, the first values are 7,
    the gradient's norm is 1500, to be clipped to 0.5. LeCun normal in Nature's: they shrink to a third."""
    policy = make_agent(Args(network=name), IMAGES)
    published = jax.jit(policy.init)(jax.random.key(0))
    obs = np.where(random_images(4) < 10, 255, 0).astype(np.uint8)  # bright points on black, as in games

    def value_loss(params, obs):
        value = policy.apply(published._replace(params=params), obs)[1]
        return 0.25 * jnp.mean(value**2), value

    gradient, value = jax.jit(jax.grad(value_loss, has_aux=True))(published.params, obs)
    first, last = torso_scales(published.params["params"]["torso"], name, obs)
    assert 0.5 < last / first < 4
    assert rms(value) < 2
    assert np.sqrt(sum(np.sum(np.square(x)) for x in jax.tree.leaves(gradient))) < 30


def torso_scales(params, name, obs):
    """Of what the first layer and the last one give."""
    torso = Impala((16, 32, 32), jnp.float32, False) if name == "impala" else Nature(jnp.float32)
    apply = jax.jit(functools.partial(torso.apply, capture_intermediates=True))
    _, captured = apply({"params": params}, np.moveaxis(obs, 1, 3) / np.float32(255))
    layers = captured["intermediates"]
    return [rms(layer["__call__"][0]) for layer in (layers["Conv_0"], layers)]


def rms(x):
    return float(np.sqrt(np.mean(np.square(x))))


def test_the_impala_network_has_the_known_number_of_parameters():
    policy = make_agent(Args(), IMAGES)
    count = sum(x.size for x in jax.tree.leaves(jax.eval_shape(policy.init, jax.random.key(0))))
    stages = [(4, 16), (16, 32), (32, 32)]
    convolutions = sum(9 * i * o + o + 4 * (9 * o * o + o) for i, o in stages)
    assert count == convolutions + (11 * 11 * 32 * 256 + 256) + (256 * 6 + 6) + (256 + 1)


def test_auto_takes_impala_for_images_and_mlp_otherwise():
    for env, has_torso in ((IMAGES, True), (VECTORS, False)):
        params = jax.eval_shape(make_agent(Args(**SMALL), env).init, jax.random.key(0)).params["params"]
        assert ("torso" in params) == has_torso


def test_networks_that_do_not_fit_are_refused():
    with pytest.raises(UsageError, match="--network nature needs images, Vectors gives .*use mlp"):
        make_agent(Args(network="nature"), VECTORS)
    with pytest.raises(UsageError, match="36x36"):
        make_agent(Args(network="nature"), make_spec("Small", (3, 20, 20), np.uint8, 2))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_params_and_outputs_are_float32_whatever_is_computed_in(dtype):
    policy, params = small_policy(dtype)
    (logits,), value, _ = jax.jit(policy.apply)(params, random_images(3))
    assert logits.shape == (3, 6) and value.shape == (3,)
    assert all(x.dtype == jnp.float32 for x in (logits, value, *jax.tree.leaves(params)))


def test_channels_may_come_first_or_last():
    policy, params = small_policy()
    obs = random_images(2)
    first, last = (jax.jit(policy.apply)(params, x)[0].logits for x in (obs, np.moveaxis(obs, 1, 3)))
    np.testing.assert_allclose(first, last, atol=1e-6)


def test_logprob_and_entropy_by_hand():
    logits = jnp.log(jnp.array([[0.5, 0.25, 0.25]])) + 3.0
    distribution = Categorical(logits)
    np.testing.assert_allclose(distribution.log_prob(jnp.array([1])), np.log([0.25]), rtol=1e-6)
    np.testing.assert_allclose(distribution.entropy(), [1.5 * np.log(2)], rtol=1e-6)
    assert distribution.mode().tolist() == [0]


class Answer(NamedTuple):
    action: Any
    logprob: Any
    value: Any


def answer(obs, env_id, step, dtype="float32"):
    policy, params = small_policy(dtype)

    def decide(obs, env_id, step):
        (action, record), _ = act(policy, jax.random.key(1), params, obs, (), step < 0, env_id, step)
        return Answer(action, *record)

    return jax.device_get(jax.jit(decide)(obs, env_id, step))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_row_does_not_depend_on_its_batch_or_its_place_there(dtype):
    """To the bit, for actions, log-probabilities and values. The contract's third promise relies on this."""
    obs, env_id, step = random_images(7), np.arange(7, dtype=np.int32), np.full(7, 5, np.int32)
    whole = answer(obs, env_id, step, dtype)
    others = random_images(7, seed=1)
    others[2] = obs[6]
    moved = answer(others, np.array([9, 9, 6, 9, 9, 9, 9], np.int32), step, dtype)
    for before, after in zip(whole, moved, strict=True):
        assert before[6] == after[2]


def test_another_batch_size_changes_no_more_than_the_last_bits():
    obs, env_id, step = random_images(8), np.arange(8, dtype=np.int32), np.full(8, 5, np.int32)
    whole = answer(obs, env_id, step)
    for rows in (slice(0, 4), slice(4, 8)):
        half = answer(obs[rows], env_id[rows], step[rows])
        np.testing.assert_allclose(half.logprob, whole.logprob[rows], atol=1e-5)
        np.testing.assert_allclose(half.value, whole.value[rows], atol=1e-5)


def test_keys_come_from_the_environment_and_its_step():
    obs = np.repeat(random_images(1), 64, axis=0)
    ids, zeros = np.arange(64, dtype=np.int32), np.zeros(64, np.int32)
    over_envs, over_steps = answer(obs, ids, zeros).action, answer(obs, zeros, ids).action
    assert len(set(over_envs)) == 6 and len(set(over_steps)) == 6
    assert (over_envs != over_steps).any()
    assert (answer(obs, zeros, zeros).action == answer(obs, zeros, zeros).action[0]).all()


def test_saved_models_find_their_params():
    """Models are saved under these names."""
    params = jax.eval_shape(make_agent(Args(**SMALL), IMAGES).init, jax.random.key(0)).params["params"]
    assert sorted(params) == ["Dense_0", "Dense_1", "Dense_2", "torso"]
    assert sorted(params["torso"]) == [f"Conv_{i}" for i in range(10)]
    assert params["torso"]["Conv_5"]["kernel"].shape == (3, 3, 4, 4)


# ------------------------------------------------------------------------------ dicts, actions, critics


MIXED = EnvSpec(
    "python",
    "Mixed",
    {},
    {
        "camera": ArraySpec((12, 12, 3), np.dtype(np.uint8)),
        "speed": ArraySpec((2,), np.dtype(np.float32)),
        "touch": ArraySpec((), np.dtype(np.float32)),
    },
    ActionSpec.box(np.array([-1.0, 0.0]), np.array([1.0, 3.0])),
)


def mixed_obs(rows=3, seed=0):
    rng = np.random.default_rng(seed)
    return {name: spec.random(rng, rows) for name, spec in MIXED.obs.items()}


def test_every_entry_of_a_dict_matters_and_goes_its_own_way():
    agent = make_agent(Args(**SMALL), MIXED)
    published = jax.jit(agent.init)(jax.random.key(0))
    assert "torsos_camera" in published.params["params"], "the image has no convolutions"
    apply = jax.jit(agent.apply)
    _, value, _ = apply(published, mixed_obs())
    for name in MIXED.obs:
        _, changed, _ = apply(published, mixed_obs() | {name: mixed_obs(seed=1)[name]})
        assert not np.allclose(changed, value), name


def test_a_box_gets_a_gaussian_that_starts_wide_and_centred():
    agent = make_agent(Args(**SMALL), MIXED)
    policy, _, _ = agent.apply(jax.jit(agent.init)(jax.random.key(0)), mixed_obs())
    assert isinstance(policy, DiagonalGaussian) and policy.mean.shape == (3, 2)
    np.testing.assert_array_equal(policy.log_std, 0)
    assert np.abs(policy.mean).max() < 0.1


def test_a_separate_critic_shares_no_dense_layer():
    """The gradient of the value does not reach the policy's layers, and the other way round."""
    agent = make_agent(Args(hiddens=(8,), separate_critic=True), VECTORS)
    published = jax.jit(agent.init)(jax.random.key(0))
    obs = np.ones((2, 5), np.float32)

    def moved(loss):
        gradient = jax.grad(lambda params: loss(*agent.apply(published._replace(params=params), obs)[:2]))
        kernels = jax.jit(gradient)(published.params)["params"]
        return {name for name, layer in kernels.items() if np.any(layer["kernel"])}

    assert moved(lambda policy, value: value.sum()) == {"Dense_2", "Dense_3"}
    assert moved(lambda policy, value: policy.logits[0, 0]) == {"Dense_0", "Dense_1"}


@pytest.mark.parametrize(("activation", "at_minus_one"), [("relu", 0.0), ("tanh", np.tanh(-1.0))])
def test_the_activation_is_a_flag(activation, at_minus_one):
    agent = make_agent(Args(hiddens=(1,), activation=activation), make_spec("One", (1,), np.float32, 2))
    params = jax.tree.map(jnp.ones_like, jax.jit(agent.init)(jax.random.key(0)).params)
    _, value, _ = agent.apply(Published(params), np.array([[-2.0]], np.float32))  # -2 + 1 before it
    np.testing.assert_allclose(value, [at_minus_one + 1], rtol=1e-6)


def test_masks_of_other_actions_than_discrete_are_refused():
    obs = {"action_mask": ArraySpec((2,), np.dtype(np.bool_)), "speed": ArraySpec((2,), np.dtype(np.float32))}
    with pytest.raises(UsageError, match="masks are for discrete actions only"):
        make_agent(Args(), MIXED._replace(obs=obs))
