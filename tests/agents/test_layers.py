import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cleanba.agents.layers import columns_to_fold, convolve, fold_kernel, max_pool


def flax_max_pool(x):
    return nn.max_pool(x, (3, 3), strides=(2, 2), padding="SAME")


@pytest.mark.parametrize("shape", [(84, 84, 3), (42, 21, 2), (11, 6, 2), (1, 1, 1), (2, 3, 1), (1, 2, 1)])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_pooling_and_its_gradient_are_flaxs(shape, dtype):
    """Also where pixels are equal, as in a game's background: there are whole numbers from 0 to 2. Sums of
    gradients that are whole numbers do not depend on their order."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.integers(0, 3, (2, *shape)), dtype)
    (value, pull_back), (expected, expected_pull_back) = jax.vjp(max_pool, x), jax.vjp(flax_max_pool, x)
    np.testing.assert_array_equal(value, expected)
    g = jnp.asarray(rng.integers(-8, 8, value.shape), dtype)
    np.testing.assert_array_equal(pull_back(g)[0], expected_pull_back(g)[0])


def test_pooling_by_hand():
    """Windows begin at rows 0 and 2 of 4, and reach beyond the last."""
    x = jnp.array([[1, 2, 0, 9], [0, 5, 0, 0], [5, 0, 3, 0], [0, 0, 0, 7]], jnp.float32)[None, :, :, None]
    value, pull_back = jax.vjp(max_pool, x)
    np.testing.assert_array_equal(value[0, :, :, 0], [[5, 9], [5, 7]])
    (gradient,) = pull_back(jnp.array([[1, 10], [100, 1000]], jnp.float32)[None, :, :, None])
    expected = np.zeros((4, 4))
    expected[1, 1] = 1  # the first of the two fives in the first window
    expected[0, 3], expected[2, 0], expected[3, 3] = 10, 100, 1000
    np.testing.assert_array_equal(gradient[0, :, :, 0], expected)


def test_pooling_hides_no_nan():
    x = jnp.zeros((1, 5, 5, 1)).at[0, 2, 2, 0].set(jnp.nan)
    np.testing.assert_array_equal(max_pool(x), flax_max_pool(x))
    assert jnp.isnan(max_pool(x)).any()


@pytest.mark.parametrize(("width", "channels", "features"), [(84, 4, 16), (42, 16, 16), (42, 16, 32)])
def test_folding_columns_into_channels_changes_no_convolution(width, channels, features):
    """The IMPALA network's on GPUs: 4, 2 and 2 columns; with whole numbers, in any order."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.integers(-3, 4, (2, 5, width, channels)), jnp.float32)
    kernel = jnp.asarray(rng.integers(-3, 4, (3, 3, channels, features)), jnp.float32)
    assert columns_to_fold(width, channels, features) == (4 if channels == 4 else 2)

    def with_gradient(folded):
        value, pull_back = jax.vjp(lambda x, kernel: convolve(x, kernel, folded=folded), x, kernel)
        return value, *pull_back(jnp.sign(value))

    for plain, folded in zip(with_gradient(False), with_gradient(True), strict=True):
        np.testing.assert_array_equal(folded, plain)


def test_only_few_channels_are_folded():
    assert columns_to_fold(width=21, channels=32, features=32) == 1
    assert columns_to_fold(width=84, channels=4, features=64) == 1  # the large network: enough as it is
    assert columns_to_fold(width=21, channels=4, features=16) == 1  # 21 columns have no halves


def test_a_folded_kernel_by_hand():
    """Two columns: output 0 sees the column before it, which is input 1 of the folded column before."""
    kernel = jnp.array([1.0, 2.0, 3.0])[None, :, None, None] * jnp.ones((3, 1, 1, 1))
    folded = fold_kernel(kernel, 2)  # [3, distance, input, output]
    np.testing.assert_array_equal(folded[0], [[[0, 0], [1, 0]], [[2, 1], [3, 2]], [[0, 3], [0, 0]]])
