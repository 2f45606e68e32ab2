"""The IMPALA network's layers, fast and deterministic.

Images are [B, height, width, C]. Measurements are in benchmarks/NOTES.md.
"""

import jax
import jax.numpy as jnp
from jax import Array, lax

# ------------------------------------------------------------------------------------------- convolution


def convolve(x: Array, kernel: Array, *, folded: bool) -> Array:
    """With a kernel [3, 3, C, features], padding SAME. `folded` is for GPUs, whose matrix units want more
    channels than 4 or 16: it treats neighbouring columns as channels of one column. Some of the kernel's
    entries are then zero, and still it is up to three times as fast."""
    batch, height, width, channels = x.shape
    fold = columns_to_fold(width, channels, kernel.shape[3]) if folded else 1
    x = x.reshape(batch, height, width // fold, fold * channels)  # neighbours in memory, so nothing is copied
    y = lax.conv_general_dilated(
        x, fold_kernel(kernel, fold), (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return y.reshape(batch, height, width, -1)


def columns_to_fold(width: int, channels: int, features: int) -> int:
    """The fastest on an H200 with 4, 16 and 32 channels in bfloat16; does no harm in float32."""
    fits = (n for n in (4, 2) if width % n == 0 and n * channels <= 32 and n * features <= 64)
    return next(fits, 1)


def fold_kernel(kernel: Array, fold: int) -> Array:
    """[3, 3, C, F] -> [3, 3, fold * C, fold * F]. A folded column at distance d has the columns at distance
    d * fold + i - o from the one that is computed; those beyond 1 are zero."""
    nothing = jnp.zeros_like(kernel[:, 0])

    def entry(d: int, i: int, o: int) -> Array:  # [3, C, F]
        distance = d * fold + i - o
        return kernel[:, distance + 1] if abs(distance) <= 1 else nothing

    columns = range(fold)
    entries = [[jnp.stack([entry(d, i, o) for o in columns], 2) for i in columns] for d in (-1, 0, 1)]
    folded = jnp.stack([jnp.stack(of_distance, 1) for of_distance in entries], 1)  # [3, 3, i, C, o, F]
    return folded.reshape(3, 3, fold * kernel.shape[2], fold * kernel.shape[3])


# ----------------------------------------------------------------------------------------------- pooling


@jax.custom_vjp
def max_pool(x: Array) -> Array:
    """Over 3x3 windows, stride 2, padding SAME. Of equal pixels the first one wins, as in XLA's own pooling.
    But XLA's gradient scatters: on GPUs in any order, or slowly if it must be deterministic, on CPUs in a
    scalar loop. Here each pixel gathers from the windows in which it is the maximum."""
    return _with_winners(x)[0]


def _with_winners(x: Array) -> tuple[Array, tuple[Array, tuple[int, int]]]:
    """The largest pixel of each window, and where in its window it is: 0 to 8."""
    height, width = x.shape[1:3]
    for axis in (1, 2):
        before = x.shape[axis] % 2
        padding = [(0, 0, 0)] * 4
        padding[axis] = (before, 1, 0)
        x = lax.pad(x, jnp.array(-jnp.inf, x.dtype), padding)
    pixels = [_every_second(_every_second(x, 1, i), 2, j) for i in range(3) for j in range(3)]
    best, winner = pixels[0], jnp.zeros(pixels[0].shape, jnp.int8)
    for place, pixel in enumerate(pixels[1:], 1):
        better = pixel > best
        best, winner = lax.max(best, pixel), jnp.where(better, jnp.int8(place), winner)  # of NaN: NaN
    return best, (winner, (height, width))


def _gradient(residuals: tuple[Array, tuple[int, int]], g: Array) -> tuple[Array]:
    winner, (height, width) = residuals

    def won_by(place: int) -> Array:
        return jnp.where(winner == place, g, jnp.zeros_like(g))

    rows = [_interleave([won_by(3 * i + j) for j in range(3)], 2, width) for i in range(3)]
    return (_interleave(rows, 1, height),)


def _every_second(x: Array, axis: int, first: int) -> Array:
    """One pixel of each window; the padded length is two pixels per window, and one."""
    return lax.slice_in_dim(x, first, first + x.shape[axis] - 2, 2, axis)


def _interleave(parts: list[Array], axis: int, length: int) -> Array:
    """Back from windows to pixels along one axis: the first, second and third pixel of each window. The third
    pixel of a window is the first of the next."""
    first, second, third = parts
    if length % 2:  # one pixel of padding in front: a window begins before an even pixel
        even, odd = second, third + _shift(first, axis, -1)
    else:
        even, odd = first + _shift(third, axis, 1), second
    shape = list(even.shape)
    shape[axis] *= 2
    return lax.slice_in_dim(jnp.stack([even, odd], axis + 1).reshape(shape), 0, length, axis=axis)


def _shift(x: Array, axis: int, by: int) -> Array:
    padding = [(0, 0, 0)] * x.ndim
    padding[axis] = (by, -by, 0)
    return lax.pad(x, jnp.zeros((), x.dtype), padding)


max_pool.defvjp(_with_winners, _gradient)
