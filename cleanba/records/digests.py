"""Digests of params and transitions, to compare runs bit for bit.

A digest is two sums, over all 32-bit words, of hashes of a word and its position. The order, device and
process in which the words are summed therefore do not matter, and it costs next to nothing.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


@jax.jit
def params_sums(params: Any) -> tuple[jax.Array, jax.Array]:
    """The two sums of the digest of the params' exact bits, computed on their device."""
    bits = [jax.lax.bitcast_convert_type(x, jnp.uint32).ravel() for x in jax.tree.leaves(params)]
    words = jnp.concatenate(bits)
    return _sums(words, jnp.arange(len(words), dtype=jnp.uint32))


def data_digest(parts: Iterable[tuple[np.ndarray, list[np.ndarray]]]) -> str:
    """Each part is the global indices [N] of its environments, and arrays [T, N] of 32-bit words or bools. A
    word's position is its environment, array and step."""
    digests = []
    for env_id, arrays in parts:
        words = np.stack([words for array in arrays for words in _words(array)])
        within_env = np.arange(words[..., 0].size, dtype=np.uint32).reshape(*words.shape[:2], 1)
        position = env_id.astype(np.uint32) * np.uint32(within_env.size) + within_env
        digests.append(digest(_sums(words, position)))
    return joint_digest(digests)


def _words(array: np.ndarray) -> Iterator[np.ndarray]:
    """u32 [T, N] each, of an array [T, N, ...]."""
    bits = array.astype(np.uint32) if array.dtype == bool else array.view(np.uint32)
    yield from np.moveaxis(bits.reshape(*bits.shape[:2], -1), -1, 0)


def joint_digest(digests: Iterable[str]) -> str:
    """The digest of all environments, from the digests of the parts."""
    pairs = [(int(text[:8], 16), int(text[8:], 16)) for text in digests]
    return digest(sum(column) % 2**32 for column in zip(*pairs, strict=True))


def _sums(words: Any, position: Any) -> tuple[Any, Any]:
    """For u32 arrays of numpy or jax."""
    first = _mix(words ^ _mix(position))
    second = _mix(first + np.uint32(0x9E3779B9))
    return first.sum(dtype=np.uint32), second.sum(dtype=np.uint32)


def _mix(x: Any) -> Any:
    """MurmurHash3's finalizer: a bijection of 32 bits that leaves no pattern."""
    x = (x ^ (x >> 16)) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * np.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


def digest(sums: Iterable[Any]) -> str:
    return "".join(f"{int(x):08x}" for x in sums)
