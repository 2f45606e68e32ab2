"""Numbers that can be checked by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cleanba.agents.distributions import Categorical, DiagonalGaussian, MultiCategorical

LN = np.log


def keys(n, seed=0):
    return jax.vmap(lambda i: jax.random.fold_in(jax.random.key(seed), i))(jnp.arange(n))


def test_a_gaussian_by_hand():
    """Means 1 and 2, deviations 1 and 2; the action (1, 4) is 0 and 1 deviations away."""
    gaussian = DiagonalGaussian(jnp.array([[1.0, 2.0]]), jnp.array([[0.0, LN(2)]]))
    density = (1 / np.sqrt(2 * np.pi)) * (1 / (2 * np.sqrt(2 * np.pi)) * np.exp(-0.5))
    np.testing.assert_allclose(gaussian.log_prob(jnp.array([[1.0, 4.0]])), [LN(density)], rtol=1e-6)
    entropy = 0.5 * LN(2 * np.pi * np.e) + 0.5 * LN(2 * np.pi * np.e * 4)
    np.testing.assert_allclose(gaussian.entropy(), [entropy], rtol=1e-6)
    np.testing.assert_array_equal(gaussian.mode(), [[1.0, 2.0]])


def test_samples_of_a_gaussian_have_its_moments():
    rows = 20_000
    gaussian = DiagonalGaussian(jnp.tile(jnp.array([1.0, -2.0]), (rows, 1)), jnp.full((rows, 2), LN(0.5)))
    sample = np.asarray(gaussian.sample(keys(rows)))
    np.testing.assert_allclose(sample.mean(axis=0), [1.0, -2.0], atol=0.02)
    np.testing.assert_allclose(sample.std(axis=0), 0.5, rtol=0.02)
    assert abs(np.corrcoef(sample.T)[0, 1]) < 0.03


def test_a_row_of_a_sample_depends_on_its_key_alone():
    gaussian = DiagonalGaussian(jnp.zeros((3, 2)), jnp.zeros((3, 2)))
    first, second = gaussian.sample(keys(3)), gaussian.sample(keys(3)[::-1])
    np.testing.assert_array_equal(first, second[::-1])


def test_a_mask_leaves_the_allowed_actions_their_proportions():
    """Of 1 : 2 : 5 without the third: 1/3, 2/3."""
    masked = Categorical(LN(jnp.array([[1.0, 2.0, 5.0]]))).masked(jnp.array([[True, True, False]]))
    probability = [float(jnp.exp(masked.log_prob(jnp.array([a])))[0]) for a in range(3)]
    np.testing.assert_allclose(probability, [1 / 3, 2 / 3, 0], atol=1e-6)
    np.testing.assert_allclose(masked.entropy(), [-(LN(1 / 3) / 3 + LN(2 / 3) * 2 / 3)], rtol=1e-5)
    assert masked.mode()[0] == 1
    many = Categorical(jnp.tile(masked.logits, (1000, 1)))
    assert not (many.sample(keys(1000)) == 2).any()


def test_with_everything_forbidden_all_stays_finite():
    """On a reset row: the action is ignored, but a NaN would not be."""

    def loss(logits):
        masked = Categorical(logits).masked(jnp.zeros(3, bool))
        return masked.log_prob(jnp.array(1)) + masked.entropy()

    value, gradient = jax.value_and_grad(loss)(jnp.array([0.0, 1.0, 2.0]))
    np.testing.assert_allclose(value, LN(1 / 3) + LN(3), atol=1e-6)
    np.testing.assert_array_equal(gradient, 0)


def test_independent_numbers_multiply_their_probabilities():
    """1/2 of two, then 3/4 of (1 : 3)."""
    policy = MultiCategorical((Categorical(jnp.zeros((1, 2))), Categorical(LN(jnp.array([[1.0, 3.0]])))))
    np.testing.assert_allclose(policy.log_prob(jnp.array([[0, 1]])), [LN(1 / 2 * 3 / 4)], rtol=1e-6)
    entropy = LN(2) - (LN(1 / 4) / 4 + LN(3 / 4) * 3 / 4)
    np.testing.assert_allclose(policy.entropy(), [entropy], rtol=1e-6)
    np.testing.assert_array_equal(policy.mode(), [[0, 1]])


def test_independent_numbers_are_sampled_independently():
    rows = 4000
    part = Categorical(jnp.zeros((rows, 2)))
    sample = np.asarray(MultiCategorical((part, part)).sample(keys(rows)))
    assert sample.dtype == np.int32 and sample.shape == (rows, 2)
    share = [np.mean((sample == pair).all(axis=1)) for pair in ([0, 0], [0, 1], [1, 0], [1, 1])]
    assert share == pytest.approx([0.25] * 4, abs=0.03)
