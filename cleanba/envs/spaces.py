"""From Gymnasium's spaces to specifications, for every backend."""

import json
from typing import Any

import gymnasium.spaces as spaces
import numpy as np

from cleanba.config.errors import UsageError
from cleanba.config.flags import with_tuples
from cleanba.envs.spec import ActionSpec, ArraySpec


def four_bytes(space: Any) -> np.dtype:
    """What an array of this space becomes, as JAX has no wider numbers unless asked. Whole numbers that 32
    bits cannot hold become floats, instead of wrapping around."""
    if space.dtype.itemsize < 8:
        return space.dtype
    fits = space.dtype.kind != "f" and np.all(np.abs(_bounds(space)) <= np.iinfo(np.int32).max)
    return np.dtype(np.int32 if fits else np.float32)


def _bounds(space: Any) -> np.ndarray:
    if isinstance(space, spaces.Box):
        return np.array([space.low, space.high], np.float64)
    return np.ravel(getattr(space, "nvec", 1))


def obs_specs(env_id: str, space: Any) -> Any:
    """Boxes stay as they are, discrete observations become one-hot, dicts stay dicts, without nesting."""
    match space:
        case spaces.Discrete():
            return ArraySpec((int(space.n),), np.dtype(np.float32))
        case spaces.Dict():
            entries = flat_entries(space)
            specs = {"/".join(keys): obs_specs(env_id, part) for keys, part in entries.items()}
            if len(specs) < len(entries):
                raise UsageError(
                    f"--env-id {env_id} has two observations of one name among {', '.join(specs)} (a/b is "
                    "also what the entry b of a dict a is called); rename one"
                )
            return specs
        case spaces.Box() | spaces.MultiBinary() | spaces.MultiDiscrete():
            return ArraySpec(space.shape, four_bytes(space))
        case _:
            raise UsageError(
                f"--env-id {env_id} has {type(space).__name__} observations, which no network here can see; "
                "wrap it so that they are Box, Discrete or Dict"
            )


def flat_entries(space: spaces.Dict) -> dict[tuple[str, ...], Any]:
    """By the keys that lead to them through nested dicts. Their names are these keys joined by a /, which a
    key may have, too."""
    flat: dict[tuple[str, ...], Any] = {}
    for key, part in space.items():
        inner = flat_entries(part) if isinstance(part, spaces.Dict) else {(): part}
        flat |= {(key, *keys): entry for keys, entry in inner.items()}
    return flat


def action_spec(env_id: str, space: Any) -> ActionSpec:
    match space:
        case spaces.Discrete(start=0):
            return ActionSpec("discrete", n=int(space.n))
        case spaces.MultiDiscrete() if not np.any(space.start):
            return ActionSpec.multi_discrete(np.ravel(space.nvec).tolist())
        case spaces.Box() if space.dtype.kind == "f":
            if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
                raise UsageError(
                    f"--env-id {env_id} has actions without bounds ({space}); wrap it so that they are finite"
                )
            return ActionSpec.box(space.low, space.high)
        case _:
            raise UsageError(
                f"--env-id {env_id} has {space} actions; wrap it so that they are Discrete, MultiDiscrete "
                "(both from 0) or a Box of floats"
            )


def parse_options(text: str) -> dict[str, Any]:
    """The JSON object of --env-options."""
    try:
        options = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"--env-options {text[:200]} is not JSON ({error}); give '{{\"name\": value}}'"
        ) from None
    if not isinstance(options, dict):
        raise UsageError(f"--env-options {text} is not a JSON object; give '{{\"name\": value}}'")
    return with_tuples(options)
