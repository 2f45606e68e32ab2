"""Action distributions: what a policy answers to B observations. Each is a NamedTuple of arrays."""

import functools
import math
from collections.abc import Iterable
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array


class Distribution(Protocol):
    """Over the actions of an ActionSpec; leading axes are the batch's."""

    def sample(self, keys: Array) -> Array:
        """One action [B, ...], with a key [B] each."""
        ...

    def log_prob(self, action: Array) -> Array: ...

    def entropy(self) -> Array: ...

    def mode(self) -> Array:
        """The most probable action."""
        ...


FORBIDDEN = -1e9  # the logit of an action that a mask forbids: its probability is 0, and all stays finite
LOG_2_PI = math.log(2 * math.pi)


class Categorical(NamedTuple):
    logits: Array  # [..., A]

    def masked(self, allowed: Array) -> "Categorical":
        """Without the actions where `allowed` [..., A] is False; if that is all of them, each has the same
        probability (on a reset row the action is ignored)."""
        return Categorical(jnp.where(allowed, self.logits, FORBIDDEN))

    def sample(self, keys: Array) -> Array:
        return jax.vmap(jax.random.categorical)(keys, self.logits).astype(jnp.int32)

    def log_prob(self, action: Array) -> Array:
        return jnp.take_along_axis(jax.nn.log_softmax(self.logits), action[..., None], axis=-1)[..., 0]

    def entropy(self) -> Array:
        log_prob = jax.nn.log_softmax(self.logits)
        return -jnp.sum(jnp.exp(log_prob) * log_prob, axis=-1)

    def mode(self) -> Array:
        return jnp.argmax(self.logits, axis=-1).astype(jnp.int32)


def sum_up(parts: Iterable[Array]) -> Array:
    return functools.reduce(jnp.add, parts)


class MultiCategorical(NamedTuple):
    """Independent discrete numbers."""

    parts: tuple[Categorical, ...]  # of each number

    def sample(self, keys: Array) -> Array:
        each = (jax.vmap(jax.random.fold_in, (0, None))(keys, i) for i in range(len(self.parts)))
        numbers = [part.sample(key) for part, key in zip(self.parts, each, strict=True)]
        return jnp.stack(numbers, axis=-1)

    def log_prob(self, action: Array) -> Array:
        return sum_up(part.log_prob(action[..., i]) for i, part in enumerate(self.parts))

    def entropy(self) -> Array:
        return sum_up(part.entropy() for part in self.parts)

    def mode(self) -> Array:
        return jnp.stack([part.mode() for part in self.parts], axis=-1)


class DiagonalGaussian(NamedTuple):
    """Independent normal numbers."""

    mean: Array  # [..., D]
    log_std: Array  # [..., D]

    def sample(self, keys: Array) -> Array:
        noise = jax.vmap(lambda key: jax.random.normal(key, self.mean.shape[1:]))(keys)
        return self.mean + jnp.exp(self.log_std) * noise

    def log_prob(self, action: Array) -> Array:
        deviations = (action - self.mean) / jnp.exp(self.log_std)
        return jnp.sum(-0.5 * deviations**2 - self.log_std - 0.5 * LOG_2_PI, axis=-1)

    def entropy(self) -> Array:
        return jnp.sum(self.log_std + 0.5 + 0.5 * LOG_2_PI, axis=-1)

    def mode(self) -> Array:
        return self.mean
