"""Arrays in memory that a process and its workers share: each environment has a row in each of them."""

import mmap
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import gymnasium.spaces as spaces
import numpy as np

from cleanba.envs.spaces import flat_entries
from cleanba.envs.spec import ACTION_MASK, ArraySpec, EnvSpec

ALIGNMENT = 64  # bytes: a cache line, so that processes do not write into the same one
OBS = "obs/"  # before the names of observations; that of a single array is empty


class Field(NamedTuple):
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def size(self) -> int:
        size = int(np.prod(self.shape)) * self.dtype.itemsize
        return -(-size // ALIGNMENT) * ALIGNMENT


def layout(env: EnvSpec, envs: int, workers: int) -> list[Field]:
    numbers, flags = np.dtype(np.float32), np.dtype(np.bool_)
    obs = {"": env.obs} if isinstance(env.obs, ArraySpec) else env.obs
    return [
        *(Field(OBS + name, (envs, *spec.shape), spec.dtype) for name, spec in obs.items()),
        Field("action", (envs, *env.action.shape), env.action.dtype),
        Field("reward", (envs,), numbers),
        Field("raw_reward", (envs,), numbers),
        Field("terminated", (envs,), flags),
        Field("truncated", (envs,), flags),
        Field("current", (workers,), np.dtype(np.int32)),  # the environment a worker is busy with, or -1
    ]


def allocate(fields: list[Field]) -> int:
    """An anonymous file in memory: it is gone with the last process that has it open."""
    fd = os.memfd_create("cleanba-envs")
    os.ftruncate(fd, sum(field.size for field in fields))
    return fd


def map_rows(fd: int, fields: list[Field]) -> dict[str, np.ndarray]:
    memory = mmap.mmap(fd, 0)
    rows, start = {}, 0
    for field in fields:
        entries = int(np.prod(field.shape))
        rows[field.name] = np.frombuffer(memory, field.dtype, entries, start).reshape(field.shape)
        start += field.size
    return rows


class BadObservation(Exception):
    """What an environment gives does not fit its observation space, or is not what Gymnasium's API says."""


class ObsWriter:
    """Writes observations of one space into the rows, encoded as `obs_specs` describes them."""

    def __init__(self, space: Any, rows: dict[str, np.ndarray]):
        entries = flat_entries(space) if isinstance(space, spaces.Dict) else {(): space}
        names = {keys: "/".join(keys) for keys in entries}
        self._leaves = [(names[keys], keys, part, rows[OBS + names[keys]]) for keys, part in entries.items()]

    def write(self, at: Any, obs: Any, *, check_numbers: bool, batch: tuple[int, ...] = ()) -> None:
        """An observation at a row, or a batch of them at a slice."""
        for name, keys, space, rows in self._leaves:
            array = _checked(name, space, self._entry(obs, keys), check_numbers, batch)
            if isinstance(space, spaces.Discrete):
                rows[at] = np.arange(space.n) == (array - space.start)[..., None]
            else:
                rows[at] = array

    def _entry(self, obs: Any, keys: tuple[str, ...]) -> Any:
        leaf = obs
        try:
            for key in keys:
                leaf = leaf[key]
        except (KeyError, IndexError, TypeError):
            name, known = "/".join(keys), ", ".join(name for name, *_ in self._leaves)
            what = "" if isinstance(obs, Mapping) else f" ({type(obs).__name__}, not a dict)"
            raise BadObservation(
                f"gives an observation{what} that has no entry {name!r}; its space has {known}"
            ) from None
        return leaf


def _checked(name: str, space: Any, leaf: Any, check_numbers: bool, batch: tuple[int, ...]) -> np.ndarray:
    array, shape = np.asarray(leaf), (*batch, *space.shape)
    # Wider numbers of the same kind are what many environments give, and Gymnasium's vector ones accept.
    if array.shape != shape or not np.can_cast(array.dtype, space.dtype, "same_kind"):
        came, expected = f"{array.shape} {array.dtype}", f"{shape} {space.dtype}"
        raise BadObservation(f"gives {_said(name)} {came}, but its space says {expected}")
    if isinstance(space, spaces.Discrete) and not _is_in(space, array):
        raise BadObservation(f"gives {_said(name)} {leaf!r}, which is not in its space {space}")
    if check_numbers and array.dtype.kind == "f" and not np.isfinite(array).all():
        raise BadObservation(f"gives {_said(name)} that are not finite at its first steps: {array}")
    return array


def _is_in(space: spaces.Discrete, array: np.ndarray) -> bool:
    return bool(((array >= space.start) & (array < space.start + space.n)).all())


def _said(name: str) -> str:
    return f"observations {name!r}" if name else "observations"


def with_bool_mask(obs: Any, actions: int) -> Any:
    """Environments give masks as whatever numbers; networks need them as bools."""
    if isinstance(obs, dict) and ACTION_MASK in obs:
        return obs | {ACTION_MASK: ArraySpec((actions,), np.dtype(np.bool_))}
    return obs
