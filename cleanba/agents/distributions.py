"""Action distributions: what a policy answers to B observations. Each is a NamedTuple of arrays."""

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


class Categorical(NamedTuple):
    logits: Array  # [..., A]

    def sample(self, keys: Array) -> Array:
        return jax.vmap(jax.random.categorical)(keys, self.logits).astype(jnp.int32)

    def log_prob(self, action: Array) -> Array:
        return jnp.take_along_axis(jax.nn.log_softmax(self.logits), action[..., None], axis=-1)[..., 0]

    def entropy(self) -> Array:
        log_prob = jax.nn.log_softmax(self.logits)
        return -jnp.sum(jnp.exp(log_prob) * log_prob, axis=-1)

    def mode(self) -> Array:
        return jnp.argmax(self.logits, axis=-1).astype(jnp.int32)
