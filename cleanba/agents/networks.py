"""The policy and value network: a torso and two heads."""

import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from flax.linen.initializers import lecun_normal, orthogonal
from jax import Array

from cleanba.agents.agent import Agent, memoryless
from cleanba.agents.distributions import Categorical, Distribution
from cleanba.agents.layers import convolve, max_pool
from cleanba.config.errors import UsageError
from cleanba.config.flags import RunArgs
from cleanba.envs.spec import ActionSpec, ArraySpec, EnvSpec
from cleanba.runtime.devices import on_accelerator

SQRT_2 = float(np.sqrt(2))
MIN_NATURE_SIZE = 36  # pixels; smaller images leave nothing for its last layer


class Conv(nn.Module):
    """3x3. Models have the names of these classes in their files, and initial weights depend on them. LeCun
    normal as in the original: orthogonal √2 doubles the variance with each residual block, so that the first
    values are some ten times the rewards, and their gradient drowns the policy's (benchmarks/NOTES.md)."""

    features: int
    dtype: jnp.dtype
    folded: bool

    @nn.compact
    def __call__(self, x: Array) -> Array:  # [B, height, width, channels]
        kernel = self.param("kernel", lecun_normal(), (3, 3, x.shape[3], self.features))
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
    """The convolutions of Mnih et al. 2015. Nothing is added up here: orthogonal √2 keeps the scale."""

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
    """obs [B, ...] -> distribution over actions, value [B]; the torso is shared."""

    torso: nn.Module | None  # for images; None: dense layers only
    hiddens: tuple[int, ...]
    action: ActionSpec
    dtype: jnp.dtype
    in_parts: bool  # apply the torso to a few rows at a time

    @nn.compact
    def __call__(self, obs: Array) -> tuple[Distribution, Array]:
        if self.torso is None:
            x = obs.astype(self.dtype)
            activation = nn.tanh
        else:
            if obs.shape[1] < obs.shape[3]:  # EnvPool's images are [B, channels, height, width]
                obs = jnp.moveaxis(obs, 1, 3)
            x = obs.astype(self.dtype) / 255
            x = _in_equal_parts(self.torso, x) if self.in_parts else self.torso(x)
            activation = nn.relu
        x = x.reshape(len(x), -1)
        for width in self.hiddens:
            x = activation(nn.Dense(width, kernel_init=orthogonal(SQRT_2), dtype=self.dtype)(x))
        x = x.astype(jnp.float32)
        distribution = Categorical(nn.Dense(self.action.n, kernel_init=orthogonal(0.01))(x))
        value = nn.Dense(1, kernel_init=orthogonal(1.0))(x)
        return distribution, value[:, 0]


def _in_equal_parts(torso: Callable[[Array], Array], x: Array) -> Array:
    """`torso(x)` for CPUs, in parts of about 16 rows: larger convolutions do not fit into the cache, and
    independent parts run on several cores (both networks: 1.2 to 2.4 times as fast). At least two parts; at
    most 16, because each is compiled. All have one size, so that a row's result does not depend on its
    position."""
    rows = len(x)
    parts = min(rows, 16, max(2, math.ceil(rows / 16)))
    size = math.ceil(rows / parts)
    x = jnp.pad(x, ((0, parts * size - rows), *[(0, 0)] * (x.ndim - 1)))
    return jnp.concatenate([torso(part) for part in jnp.split(x, parts)])[:rows]


def resolve_network(args: RunArgs, env: EnvSpec) -> str:
    if args.network == "auto":
        return "impala" if env.obs.is_image else "mlp"
    return args.network


def make_agent(args: RunArgs, env: EnvSpec) -> Agent:
    obs = env.obs
    if not isinstance(obs, ArraySpec) or env.action.kind != "discrete":
        raise UsageError(
            f"the networks here need one array of observations and discrete actions, not {env.env_id}"
        )
    name = resolve_network(args, env)
    if name != "mlp" and not obs.is_image:
        raise UsageError(f"--network {name} needs images, {env.env_id} gives {obs.shape}; use mlp")
    if name == "nature" and sorted(obs.shape)[1] < MIN_NATURE_SIZE:
        raise UsageError(
            f"--network nature needs images of {MIN_NATURE_SIZE}x{MIN_NATURE_SIZE} or more, {env.env_id} "
            f"gives {obs.shape}; use impala"
        )
    dtype = jnp.dtype(args.compute_dtype)
    impala = Impala(args.channels, dtype, folded=on_accelerator())
    torsos = {"impala": impala, "nature": Nature(dtype), "mlp": None}
    network: Any = ActorCritic(torsos[name], args.hiddens, env.action, dtype, in_parts=not on_accelerator())
    return memoryless(
        init=lambda key: network.init(key, jnp.zeros((1, *obs.shape), obs.dtype)), apply=network.apply
    )
