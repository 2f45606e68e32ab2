"""The header of a model file. Models come from strangers: what a header says is checked, and what it may ask
for is bounded, before anything is built from it."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from cleanba.config.errors import UsageError
from cleanba.config.flags import with_tuples
from cleanba.envs.atari import ATARI_PRESETS, FRAME_STACKS
from cleanba.envs.factory import BACKENDS, NAMES
from cleanba.envs.spec import ActionSpec, ArraySpec, EnvSpec, env_from_json
from cleanba.runtime.messages import printable

FORMAT = 2  # file format; incremented when older code cannot read what newer code writes
MAX_LAYERS = 64  # of all networks, each of which sees one array of the observations
MAX_ENTRIES = 2**21  # of an observation: five times those of Atari's full frames, in colour and stacked
MAX_WIDTH = 2**25  # numbers of one observation in the widest layer: 4 GiB for the rows of a probe. The
#                    largest preset has 2**19; four cameras of 640 × 480 pixels, in 16 channels, are below
MAX_ACTIONS = 2**16
MAX_PARTS = 256  # of a multi-discrete action; each has its own sampling: so many take minutes to compile
MAX_STEPS = 2**53


class Header(NamedTuple):
    algorithm: str
    flags: dict[str, Any]
    env: EnvSpec
    steps: int
    probe: list[Any] | None  # what its policy answered to fixed observations


def read_header(
    path: Path,
    metadata: dict[str, str],
    given: dict[str, Any],
    env_id: str | None = None,
    *,
    is_own: bool = False,
) -> Header:
    """`given` are the environment's options that the user has named: they go over those of the model. So
    does `env_id`. An environment that `is_own` is made by a class or function that the user has given."""
    try:
        version = int(metadata["format"])
    except (KeyError, ValueError):
        raise UsageError(f"{path} is a safetensors file, but not a Cleanba model") from None
    if version > FORMAT:
        raise UsageError(
            f"{path} was written by a newer Cleanba (format {version}, this one reads up to {FORMAT}); "
            "update it"
        )
    try:
        flags = with_tuples(json.loads(metadata["args"]))
        name = metadata.get("algorithm") or ("ppo" if "clip_coef" in flags else "impala")
        env = env_from_json(json.loads(metadata["env"]))
        env = env._replace(options=env.options | given, env_id=env_id or env.env_id)
        answers = metadata.get("answers") or metadata.get("probe", "null")  # models of before have fewer
        header = Header(name, flags, env, int(metadata["steps"]), json.loads(answers))
        check_bounds(header)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise damaged(path, error) from error
    check_module(path, env, env_id)
    check_options(path, env, given | own_options(env) if is_own else given)
    return header


def damaged(path: Path, error: Exception) -> UsageError:
    kind = "" if isinstance(error, UsageError) else f"{type(error).__name__}: "
    return UsageError(f"{path} has a damaged header ({kind}{printable(str(error))[:200]})")


def check_bounds(header: Header) -> None:
    """Before anything is built: raises ValueError for what would take too much memory or time."""
    env = header.env
    arrays = list(env.obs.values()) if isinstance(env.obs, Mapping) else [env.obs]
    if not 0 <= header.steps <= MAX_STEPS or not isinstance(header.probe, list | None):
        raise ValueError("impossible steps or probe")
    if env.backend not in {*BACKENDS, *NAMES} or not isinstance(env.env_id, str):
        raise ValueError("no known kind of environment")
    if not arrays or not all(map(_is_array, arrays)):
        raise ValueError("impossible observations")
    lengths = {name: len(value) for name, value in header.flags.items() if isinstance(value, tuple)}
    images = max(1, sum(x.is_image for x in arrays))
    layers = images * lengths.pop("channels", 1) + len(arrays) * max(lengths.values(), default=1)
    if layers > MAX_LAYERS:
        raise ValueError(f"too many layers ({layers})")
    if (width := sum(_width(x, header.flags) for x in arrays)) > MAX_WIDTH:
        raise ValueError(f"a layer of {width:,} numbers per observation, more than {MAX_WIDTH:,}")
    if not _is_action(env.action):
        raise ValueError("impossible actions")


def _is_array(spec: ArraySpec) -> bool:
    is_number = spec.dtype.kind in "biuf" and spec.dtype.itemsize <= 8
    return _is_shape(spec.shape, MAX_ENTRIES) and is_number and type(spec.stack) is int


def _width(spec: ArraySpec, flags: dict[str, Any]) -> int:
    """The most numbers that a layer which sees this array can have: those of the array, or those of an image
    after a convolution. Before each but the first, pooling halves its sides."""
    sides, channels = sorted(spec.shape)[-2:], flags.get("channels")
    if not spec.is_image or flags.get("network") in ("mlp", "nature") or not isinstance(channels, tuple):
        return math.prod(spec.shape)
    counts = [c for c in channels if type(c) is int]  # others are refused with their flag
    widths = [math.prod(-(-side >> i) for side in sides) * c for i, c in enumerate(counts)]
    return max([math.prod(spec.shape), *widths])


def _is_action(spec: ActionSpec) -> bool:
    """Whether it is one that environments have, its parts as many as its shape says."""
    if not _is_shape(spec.shape, MAX_ACTIONS):
        return False
    match spec.kind:
        case "discrete":
            return _is_shape((spec.n,), MAX_ACTIONS) and spec == ActionSpec("discrete", n=spec.n)
        case "multi_discrete":
            counts = len(spec.ns) <= MAX_PARTS and all(_is_shape((n,), MAX_ACTIONS) for n in spec.ns)
            return counts and sum(spec.ns) <= MAX_ACTIONS and spec == ActionSpec.multi_discrete(spec.ns)
        case "box":
            bounds = [np.array(x, float) for x in (spec.low, spec.high)]
            return len(spec.low) == len(spec.high) and spec == ActionSpec.box(*bounds)
    return False


def _is_shape(shape: tuple[Any, ...], most: int) -> bool:
    sizes = len(shape) <= 8 and all(type(size) is int and 0 < size <= most for size in shape)
    return sizes and math.prod(shape) <= most


def check_module(path: Path, env: EnvSpec, given: str | None) -> None:
    """`module:Id` means that the module is imported, which executes it: only one that the user has named."""
    if ":" in env.env_id and env.env_id != given:
        module, name = (printable(part)[:200] for part in env.env_id.rsplit(":", 1))
        raise UsageError(
            f"{path} was trained in {name} of the module {module}, which would be executed; "
            f"allow it with --env-id {module}:{name}"
        )


def own_options(env: EnvSpec) -> dict[str, Any]:
    """The options of the model that go to a class of the user's own, which knows them; and of ours, those
    that ask for no more memory or time than a training would."""
    if env.backend != "gymnasium":  # its library would get them
        return {}
    return {
        name: value
        for name, value in env.options.items()
        if name not in ("action_repeat", "frame_stack") or (type(value) is int and value <= MAX_LAYERS)
    }


def check_options(path: Path, env: EnvSpec, given: dict[str, Any]) -> None:
    """Options are for a library in C++: only values that a preset has, or the user has named, reach it."""
    presets = [*ATARI_PRESETS.values(), *FRAME_STACKS, given]
    unknown = {}
    for name, value in env.options.items():
        known = [preset[name] for preset in presets if name in preset]
        if not any(type(value) is type(x) and value == x for x in known):
            unknown[name] = value
    if unknown:
        named = printable(json.dumps(unknown | given)[:400])
        asks = f"{path} asks for options that no preset has"
        raise UsageError(f"{asks}; allow them with --env-options '{named}'")


def describe_env(env: EnvSpec) -> str:
    obs = ", ".join(f"{'x'.join(map(str, x.shape))} {x.dtype.name}" for x in jax.tree.leaves(env.obs))
    return printable(f"{env.env_id} with {env.action} and {obs} observations")
