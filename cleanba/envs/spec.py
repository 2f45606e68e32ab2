"""What environments are and what a step of them gives, whichever library runs them."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np


@dataclass(frozen=True)
class ArraySpec:
    """One array of an observation."""

    shape: tuple[int, ...]
    dtype: np.dtype
    stack: int = 1  # how many frames it holds, of which only the last is new; 1: all of it is

    @property
    def is_image(self) -> bool:
        return len(self.shape) == 3 and self.dtype == np.uint8

    @property
    def new_shape(self) -> tuple[int, ...]:
        """Of what is new in each step."""
        return self.shape if self.stack == 1 else self.shape[1:]

    def random(self, rng: np.random.Generator, rows: int, *, only_new: bool = False) -> np.ndarray:
        shape = (rows, *(self.new_shape if only_new else self.shape))
        if self.dtype.kind == "f":
            return rng.standard_normal(shape).astype(self.dtype)
        return rng.integers(128, size=shape, dtype=np.uint8).astype(self.dtype)


@dataclass(frozen=True)
class ActionSpec:
    """Discrete actions are 0 to n - 1, those of a box lie between `low` and `high`."""

    kind: Literal["discrete", "box"]
    shape: tuple[int, ...] = ()
    dtype: np.dtype = np.dtype(np.int32)  # noqa: RUF009 – four bytes, so that actions are packed bit by bit
    n: int = 0
    low: float = -np.inf
    high: float = np.inf

    def random(self, rng: np.random.Generator, rows: int) -> np.ndarray:
        if self.kind == "discrete":
            return rng.integers(self.n, size=(rows, *self.shape), dtype=self.dtype)
        low, high = max(self.low, -1.0), min(self.high, 1.0)
        return rng.uniform(low, high, (rows, *self.shape)).astype(self.dtype)


class EnvSpec(NamedTuple):
    """What the environments of a run are."""

    backend: str  # the library that steps them
    env_id: str
    options: dict[str, Any]  # for that library
    obs: Any  # a tree of ArraySpecs: one, or a dict of them
    action: ActionSpec


def env_to_json(env: EnvSpec) -> dict[str, Any]:
    """As it is in models. `obs` is one array today; a dict of them is a JSON object."""

    def plain(spec: Any) -> dict[str, Any]:
        return asdict(spec) | {"dtype": spec.dtype.name}

    obs = {name: plain(x) for name, x in env.obs.items()} if isinstance(env.obs, Mapping) else plain(env.obs)
    return env._asdict() | {"obs": obs, "action": plain(env.action)}


def env_from_json(record: dict[str, Any]) -> EnvSpec:
    """Also from models of before, which had one array and discrete actions."""

    def array(x: dict[str, Any]) -> ArraySpec:
        return ArraySpec(tuple(x["shape"]), np.dtype(x["dtype"]), x["stack"])

    if "obs_shape" in record:
        shape, stack = tuple(record["obs_shape"]), record["options"].get("stack_num", 1)
        dtype = np.dtype(record["obs_dtype"])
        obs = ArraySpec(shape, dtype)
        if obs.is_image and shape[0] == stack:
            obs = ArraySpec(shape, dtype, stack)
        action = ActionSpec("discrete", n=record["num_actions"])
        return EnvSpec("envpool", record["env_id"], record["options"], obs, action)
    arrays = record["obs"]
    action = record["action"] | {
        "shape": tuple(record["action"]["shape"]),
        "dtype": np.dtype(record["action"]["dtype"]),
    }
    tree: Any = array(arrays) if "shape" in arrays else {name: array(x) for name, x in arrays.items()}
    return EnvSpec(record["backend"], record["env_id"], record["options"], tree, ActionSpec(**action))


class EnvStep(NamedTuple):
    """What one step of B environments gave. After `terminated | truncated` the next step is a reset: its
    action is ignored, and the row is not a transition."""

    env: np.ndarray  # i32 [B], which environments of the thread
    obs: Any  # a tree of arrays [B, ...]
    reward: np.ndarray  # f32 [B], for learning: clipped on Atari
    terminated: np.ndarray  # bool [B], also on a lost life under episodic_life
    truncated: np.ndarray  # bool [B]
    raw_reward: np.ndarray  # f32 [B], for reporting
    game_over: np.ndarray  # bool [B]: the whole game ended or was cut off


class VectorEnv(Protocol):
    """The environments of one actor thread. They are sent actions, and received in batches of one size: all
    of them, in order, or fewer, in the order in which they become ready."""

    batch: int  # how many one `receive` gives

    def reset(self) -> None:
        """All start, and can be received: of that first step only the observation means something."""

    def send(self, action: np.ndarray, env: np.ndarray) -> None:
        """Actions [B, ...] for the environments [B]."""

    def receive(self) -> EnvStep: ...

    def render(self) -> np.ndarray:
        """An image of the first environment, u8 [height, width, 3], if they were made to be rendered."""
        ...

    def close(self) -> None: ...
