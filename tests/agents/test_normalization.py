import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.specs import make_spec

from cleanba.agents.normalization import MAX_COUNT, Moments, initial_statistics, scale_observations
from cleanba.cleanba_ppo import Args
from cleanba.envs.spec import ActionSpec, ArraySpec, EnvSpec


def alone(x):
    """The sum over the learners where there is one."""
    return x


merge = jax.jit(lambda moments, x, mask: moments.merge(x, mask, alone))


def test_two_rollouts_by_hand():
    """1, 3 and then 5, 7: mean 4, variance (9 + 1 + 1 + 9) / 4."""
    moments = Moments.none(())
    for rows in ([[1.0, 3.0]], [[5.0, 7.0]]):
        moments = merge(moments, jnp.array(rows), jnp.ones((1, 2), bool))
    assert moments.rows == 4 and moments.mean == 4 and moments.variance == 5


def test_rows_that_are_masked_do_not_count():
    rows = jnp.array([[[1.0], [100.0]], [[3.0], [jnp.inf]]])
    moments = merge(Moments.none((1,)), rows, jnp.array([[True, False], [True, False]]))
    assert moments.rows == 2 and moments.mean[0] == 2 and moments.variance[0] == 1
    nothing = merge(moments, rows, jnp.zeros((2, 2), bool))
    jax.tree.map(np.testing.assert_array_equal, nothing, moments)


def test_ten_million_rows_against_numpy():
    """Far from zero, where sums of squares in float32 are worthless: deviations are 1e-3 of the mean."""
    rng = np.random.default_rng(0)
    drift = np.linspace(-1, 1, 500)[:, None, None]
    moments, sums, squares, rows = Moments.none((2,)), np.zeros(2), np.zeros(2), 0
    mask = jnp.ones((100, 200), bool)
    for step in drift:
        x = (rng.standard_normal((100, 200, 2), np.float32) + step.astype(np.float32)) * [1.0, 5.0]
        x = (x + np.array([1000.0, -3.0])).astype(np.float32)
        moments = merge(moments, x, mask)
        exact = x.astype(np.float64) - [1000.0, -3.0]  # a shift, so that float64 is exact enough
        sums, squares, rows = sums + exact.sum((0, 1)), squares + (exact**2).sum((0, 1)), rows + 20_000
    mean, variance = sums / rows, squares / rows - (sums / rows) ** 2
    assert int(moments.rows) == rows == 10_000_000
    deviation = np.sqrt(variance)
    np.testing.assert_allclose(moments.mean - np.array([1000.0, -3.0]), mean, atol=2e-3 * deviation.max())
    np.testing.assert_allclose(moments.variance, variance, rtol=2e-3)


@pytest.mark.parametrize("constant", [1000.1, -0.3, 0.0])
def test_what_never_varies_is_zero_however_it_is_added_up(constant):
    """The rounding of its mean, which differs between layouts, must not become an observation."""
    for shape in ((128, 24), (24, 128), (1, 3072), (256, 64)):
        moments = Moments.none(())
        for _ in range(3):
            moments = merge(moments, jnp.full(shape, constant), jnp.ones(shape, bool))
        assert abs(moments.scale(jnp.float32(constant))) < 0.02, shape


def test_before_the_first_row_nothing_is_scaled():
    moments = merge(Moments.none(()), jnp.ones((2, 2)), jnp.zeros((2, 2), bool))
    assert moments.rows == 0 and moments.variance == 1


def test_the_count_never_overflows():
    full = Moments(jnp.int32(MAX_COUNT), jnp.zeros(()), jnp.ones(()))
    assert merge(full, jnp.ones((1, 1000)), jnp.ones((1, 1000), bool)).rows == MAX_COUNT


def test_observations_are_clipped_and_rewards_keep_their_sign():
    moments = Moments(jnp.int32(9), jnp.array(5.0), jnp.array(4.0))
    np.testing.assert_allclose(moments.scale(jnp.array([5.0, 7.0, 1e6])), [0, 1, 10], atol=1e-6)
    np.testing.assert_allclose(moments.scale_rewards(jnp.array([-1.0, 4.0, -1e6])), [-0.5, 2, -10], atol=1e-6)


def test_images_and_masks_are_left_alone():
    obs = {
        "camera": ArraySpec((8, 8, 3), np.dtype(np.uint8)),
        "speed": ArraySpec((2,), np.dtype(np.float32)),
        "action_mask": ArraySpec((3,), np.dtype(np.bool_)),
    }
    env = EnvSpec("python", "Mixed", {}, obs, ActionSpec("discrete", n=3))
    statistics = initial_statistics(Args(normalize_observations=True), env)
    assert statistics.obs.keys() == {"speed"} and statistics.reward == ()
    seen = {name: jnp.ones((1, *spec.shape), spec.dtype) for name, spec in obs.items()}
    moments = Moments(jnp.int32(1), jnp.ones(2), jnp.ones(2))
    scaled = scale_observations(statistics._replace(obs={"speed": moments}), seen)
    np.testing.assert_array_equal(scaled["speed"], 0)
    assert scaled["camera"] is seen["camera"] and scaled["action_mask"] is seen["action_mask"]


@pytest.mark.parametrize("flags", [{}, dict(normalize_rewards=True), dict(normalize_observations=True)])
def test_statistics_exist_only_where_they_are_used(flags):
    statistics = initial_statistics(Args(**flags), make_spec("Vectors", (5,), np.float32, 3))
    if not flags:
        assert statistics == ()
    else:
        assert (statistics.obs == {}) == ("normalize_rewards" in flags)
        assert (statistics.reward == ()) == ("normalize_observations" in flags)
