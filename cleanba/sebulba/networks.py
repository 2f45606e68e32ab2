"""The policy and value network: a torso, two heads, and sampling an action."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.linen.initializers import orthogonal
from jax import Array

from cleanba.sebulba.algorithm import Params
from cleanba.sebulba.args import RunArgs, UsageError
from cleanba.sebulba.envs import EnvSpec
from cleanba.sebulba.layers import convolve, max_pool
from cleanba.sebulba.topology import on_accelerator

SQRT_2 = float(np.sqrt(2))
NATURE_SMALLEST = 36  # pixels; smaller pictures leave nothing for its last layer


class Conv(nn.Module):
    """3x3. Saved models have the name of this class in those of their params."""

    features: int
    dtype: jnp.dtype
    folded: bool

    @nn.compact
    def __call__(self, x: Array) -> Array:  # [B, height, width, channels]
        kernel = self.param("kernel", orthogonal(SQRT_2), (3, 3, x.shape[3], self.features))
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        return convolve(x, kernel.astype(self.dtype), folded=self.folded) + bias.astype(self.dtype)


class Impala(nn.Module):
    """The residual network of Espeholt et al. 2018, fig. 3, without the LSTM."""

    channels: tuple[int, ...]
    dtype: jnp.dtype
    folded: bool  # convolutions for GPUs

    @nn.compact
    def __call__(self, x: Array) -> Array:  # [B, height, width, channels]
        def conv(features: int, x: Array) -> Array:
            return Conv(features, self.dtype, self.folded)(x)

        for features in self.channels:
            x = max_pool(conv(features, x))
            for _ in range(2):
                x = x + conv(features, nn.relu(conv(features, nn.relu(x))))
        return nn.relu(x)


class Nature(nn.Module):
    """The convolutions of Mnih et al. 2015."""

    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x: Array) -> Array:  # [B, height, width, channels]
        for features, kernel, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
            x = nn.relu(
                nn.Conv(
                    features,
                    (kernel, kernel),
                    (stride, stride),
                    padding="VALID",
                    kernel_init=orthogonal(SQRT_2),
                    dtype=self.dtype,
                )(x)
            )
        return x


class ActorCritic(nn.Module):
    """obs [B, ...] -> logits [B, A], value [B]; the torso is shared."""

    torso: nn.Module | None  # for images; None: dense layers only
    hiddens: tuple[int, ...]
    num_actions: int
    dtype: jnp.dtype
    in_parts: bool  # apply the torso to a few rows at a time

    @nn.compact
    def __call__(self, obs: Array) -> tuple[Array, Array]:
        if self.torso is None:
            x = obs.astype(self.dtype)
            activation = nn.tanh
        else:
            if obs.shape[1] < obs.shape[3]:  # EnvPool's pictures are [B, channels, height, width]
                obs = jnp.moveaxis(obs, 1, 3)
            x = obs.astype(self.dtype) / 255
            x = _in_equal_parts(self.torso, x) if self.in_parts else self.torso(x)
            activation = nn.relu
        x = x.reshape(len(x), -1)
        for width in self.hiddens:
            x = activation(nn.Dense(width, kernel_init=orthogonal(SQRT_2), dtype=self.dtype)(x))
        x = x.astype(jnp.float32)
        logits = nn.Dense(self.num_actions, kernel_init=orthogonal(0.01))(x)
        value = nn.Dense(1, kernel_init=orthogonal(1.0))(x)
        return logits, value[:, 0]


def _in_equal_parts(torso: Callable[[Array], Array], x: Array) -> Array:
    """`torso(x)` for CPUs, in parts of about 16 rows: larger convolutions leave the cache, and independent
    parts run on several cores (both networks: 1.2 to 2.4 times as fast). At least two parts; at most 16,
    because each is compiled. They have one size, so that what a row gives does not depend on its place."""
    rows = len(x)
    parts = min(rows, 16, max(2, math.ceil(rows / 16)))
    size = math.ceil(rows / parts)
    x = jnp.pad(x, ((0, parts * size - rows), *[(0, 0)] * (x.ndim - 1)))
    return jnp.concatenate([torso(part) for part in jnp.split(x, parts)])[:rows]


class Policy(NamedTuple):
    """A network as two functions."""

    init: Callable[[Array], Params]  # key
    apply: Callable[[Params, Array], tuple[Array, Array]]  # params, obs [B, ...] -> logits [B, A], value [B]


def resolve_network(args: RunArgs, env: EnvSpec) -> str:
    if args.network == "auto":
        return "impala" if env.is_image else "mlp"
    return args.network


def make_policy(args: RunArgs, env: EnvSpec) -> Policy:
    name = resolve_network(args, env)
    if name != "mlp" and not env.is_image:
        raise UsageError(f"--network {name} needs pictures, {env.env_id} gives {env.obs_shape}; use mlp")
    if name == "nature" and sorted(env.obs_shape)[1] < NATURE_SMALLEST:
        raise UsageError(
            f"--network nature needs pictures of {NATURE_SMALLEST}x{NATURE_SMALLEST} or more, {env.env_id} "
            f"gives {env.obs_shape}; use impala"
        )
    dtype = jnp.dtype(args.compute_dtype)
    impala = Impala(args.channels, dtype, folded=on_accelerator())
    torsos = {"impala": impala, "nature": Nature(dtype), "mlp": None}
    network: Any = ActorCritic(
        torsos[name], args.hiddens, env.num_actions, dtype, in_parts=not on_accelerator()
    )

    def init(key: Array) -> Params:
        return network.init(key, jnp.zeros((1, *env.obs_shape), env.obs_dtype))

    return Policy(init=init, apply=network.apply)


class Decision(NamedTuple):
    action: Any  # i32 [B]
    logprob: Any  # f32 [B]
    value: Any  # f32 [B]


def pack(decision: Decision) -> Array:
    """i32 [3, B], bit by bit: one copy to the host takes a third of the time of three."""
    return jnp.stack([jax.lax.bitcast_convert_type(x, jnp.int32) for x in decision])


def unpack(packed: np.ndarray) -> Decision:
    return Decision(packed[0], packed[1].view(np.float32), packed[2].view(np.float32))


def act(policy: Policy, key: Array, params: Params, obs: Array, env_id: Array, step: Array) -> Decision:
    """Sample an action per row. The key comes from the row's environment (its global index) and that
    environment's step, so it does not matter which thread, device or batch the row rode in."""
    logits, value = policy.apply(params, obs)
    action = jax.vmap(_sample, in_axes=(None, 0, 0, 0))(key, env_id, step, logits)
    return Decision(action, logprob_of(logits, action), value)


def _sample(key: Array, env_id: Array, step: Array, logits: Array) -> Array:
    key = jax.random.fold_in(jax.random.fold_in(key, env_id), step)
    return jax.random.categorical(key, logits).astype(jnp.int32)


def logprob_of(logits: Array, action: Array) -> Array:
    return jnp.take_along_axis(jax.nn.log_softmax(logits), action[..., None], axis=-1)[..., 0]


def entropy_of(logits: Array) -> Array:
    logprob = jax.nn.log_softmax(logits)
    return -jnp.sum(jnp.exp(logprob) * logprob, axis=-1)
