"""The policy and value network: a torso and two heads."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.linen.initializers import lecun_normal, orthogonal
from jax import Array

from cleanba.agents.agent import Agent, memoryless
from cleanba.agents.distributions import Categorical, DiagonalGaussian, MultiCategorical
from cleanba.agents.layers import convolve, max_pool
from cleanba.agents.normalization import with_statistics
from cleanba.agents.recurrent import Core, empty_memory, recurrent
from cleanba.config.errors import UsageError
from cleanba.config.flags import RunArgs
from cleanba.envs.spec import ACTION_MASK, ActionSpec, ArraySpec, EnvSpec
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
    """The residual network of Espeholt et al. 2018, fig. 3; its LSTM is `--recurrent lstm`."""

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
    """obs [B, ...] -> distribution over actions, value [B]; the torsos are shared. With a core, rows are
    those of sequences; its memory is between the dense layers and the heads. The value's own dense layers, if
    it has any, are then behind the memory."""

    torso: nn.Module | None  # for a single image
    torsos: Mapping[str, nn.Module]  # for the images in a dict of observations
    hiddens: tuple[int, ...]
    activation: Callable[[Array], Array]
    separate_critic: bool
    action: ActionSpec
    dtype: jnp.dtype
    in_parts: bool  # apply a torso to a few rows at a time
    core: Core | None = None

    @nn.compact
    def __call__(self, obs: Any, state: Any = (), episode_start: Any = None) -> tuple[Any, Array, Any]:
        features = self._features(obs)
        x = self._dense(features)
        if self.core is not None:
            x, state = self.core(x, state, episode_start)
            features = x
        policy = self._distribution(x)
        if isinstance(obs, Mapping) and ACTION_MASK in obs:
            policy = policy.masked(obs[ACTION_MASK] != 0)
        if self.separate_critic:
            x = self._dense(features)
        value = nn.Dense(1, kernel_init=orthogonal(1.0))(x)
        return policy, value[:, 0], state

    def _features(self, obs: Any) -> Array:
        """[B, ...] -> [B, F]. In a dict, images and vectors go their own ways and meet here."""
        if not isinstance(obs, Mapping):
            return self._image(self.torso, obs) if self.torso is not None else self._vector(obs)
        entries = {name: x for name, x in sorted(obs.items()) if name != ACTION_MASK}
        images = [self._image(self.torsos[name], x) for name, x in entries.items() if name in self.torsos]
        vectors = [self._vector(x) for name, x in entries.items() if name not in self.torsos]
        if images and vectors:  # some numbers would drown among thousands of features
            vectors = [self._layer(self.hiddens[0], jnp.concatenate(vectors, axis=1))]
        return jnp.concatenate(images + vectors, axis=1)

    def _image(self, torso: nn.Module, x: Array) -> Array:
        if x.shape[1] < x.shape[3]:  # EnvPool's images are [B, channels, height, width]
            x = jnp.moveaxis(x, 1, 3)
        x = x.astype(self.dtype) / 255
        x = _in_equal_parts(torso, x) if self.in_parts else torso(x)
        return x.reshape(len(x), -1)

    def _vector(self, x: Array) -> Array:
        x = x.reshape(len(x), -1).astype(self.dtype) / (255 if x.dtype == jnp.uint8 else 1)
        return x

    def _dense(self, x: Array) -> Array:
        for width in self.hiddens:
            x = self._layer(width, x)
        return x.astype(jnp.float32)

    def _layer(self, width: int, x: Array) -> Array:
        return self.activation(nn.Dense(width, kernel_init=orthogonal(SQRT_2), dtype=self.dtype)(x))

    def _distribution(self, x: Array) -> Any:
        """Actions begin nearly equal: small weights."""

        def head(width: int) -> Array:
            return nn.Dense(width, kernel_init=orthogonal(0.01))(x)

        match self.action.kind:
            case "discrete":
                return Categorical(head(self.action.n))
            case "multi_discrete":
                ends = np.cumsum(self.action.ns)
                return MultiCategorical(tuple(map(Categorical, jnp.split(head(ends[-1]), ends[:-1], axis=1))))
            case "box":
                mean = head(self.action.shape[0])
                log_std = self.param("log_std", nn.initializers.zeros, self.action.shape)
                return DiagonalGaussian(mean, jnp.broadcast_to(log_std, mean.shape))


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


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": nn.tanh,
    "relu": nn.relu,
    "elu": nn.elu,
    "swish": nn.swish,
}


def resolve_network(args: RunArgs, env: EnvSpec) -> str:
    if args.network == "auto":
        return "impala" if any(spec.is_image for spec in jax.tree.leaves(env.obs)) else "mlp"
    return args.network


def make_agent(args: RunArgs, env: EnvSpec) -> Agent:
    name, dtype = resolve_network(args, env), jnp.dtype(args.compute_dtype)
    check_network(name, env)

    def torso() -> nn.Module:
        return Nature(dtype) if name == "nature" else Impala(args.channels, dtype, folded=on_accelerator())

    is_dict = isinstance(env.obs, Mapping)
    images = {n for n, spec in env.obs.items() if spec.is_image and name != "mlp"} if is_dict else set()
    activation = args.activation if args.activation != "auto" else "tanh" if name == "mlp" else "relu"
    network: Any = ActorCritic(
        torso=None if is_dict or name == "mlp" else torso(),
        torsos={n: torso() for n in sorted(images)},
        hiddens=args.hiddens,
        activation=ACTIVATIONS[activation],
        separate_critic=args.separate_critic,
        action=env.action,
        dtype=dtype,
        in_parts=not on_accelerator(),
        core=Core(args.recurrent, args.recurrent_width, dtype) if args.recurrent else None,
    )

    def initial_state(envs: int) -> Any:
        return empty_memory(args.recurrent, args.recurrent_width, envs) if args.recurrent else ()

    def init(key: Array) -> Any:
        obs = jax.tree.map(lambda spec: jnp.zeros((1, *spec.shape), spec.dtype), env.obs)
        return network.init(key, obs, initial_state(1), jnp.ones((1, 1), bool))

    if args.recurrent:
        agent = recurrent(init, initial_state, network.apply)
    else:
        agent = memoryless(init, lambda params, obs: network.apply(params, obs)[:2])
    return with_statistics(agent, args, env)


def fits_nature(env: EnvSpec) -> bool:
    images = [spec for spec in jax.tree.leaves(env.obs) if spec.is_image]
    return all(sorted(spec.shape)[1] >= MIN_NATURE_SIZE for spec in images)


def check_network(name: str, env: EnvSpec) -> None:
    specs: list[ArraySpec] = jax.tree.leaves(env.obs)
    shapes = ", ".join(str(spec.shape) for spec in specs)
    images = [spec for spec in specs if spec.is_image]
    if name != "mlp" and not images:
        raise UsageError(f"--network {name} needs images, {env.env_id} gives {shapes}; use mlp")
    if name == "nature" and not fits_nature(env):
        raise UsageError(
            f"--network nature needs images of {MIN_NATURE_SIZE}x{MIN_NATURE_SIZE} or more, {env.env_id} "
            f"gives {shapes}; use impala"
        )
    if isinstance(env.obs, Mapping) and ACTION_MASK in env.obs and env.action.kind != "discrete":
        raise UsageError(f"{env.env_id} masks {env.action}; masks are for discrete actions only")
