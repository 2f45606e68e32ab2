"""What environments are and what a step of them gives, whichever library runs them."""

from collections.abc import Mapping, Sequence
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

    def __str__(self) -> str:
        kind = "image" if self.is_image else "vector" if len(self.shape) == 1 else "array"
        return f"{kind} {'×'.join(map(str, self.shape)) or '1'} {self.dtype.name}"

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
    """A discrete action is 0 to n - 1; a multi-discrete one has several numbers, each with an n of its own;
    the numbers of a box lie between `low` and `high`. Several numbers are one axis, whatever shape the
    environment gives them."""

    kind: Literal["discrete", "multi_discrete", "box"]
    shape: tuple[int, ...] = ()
    dtype: np.dtype = np.dtype(np.int32)  # noqa: RUF009 – four bytes, so that actions are packed bit by bit
    n: int = 0
    ns: tuple[int, ...] = ()  # multi-discrete: of each number
    low: tuple[float, ...] = ()  # box: of each number
    high: tuple[float, ...] = ()

    @staticmethod
    def multi_discrete(ns: Sequence[int]) -> "ActionSpec":
        return ActionSpec("multi_discrete", (len(ns),), ns=tuple(ns))

    @staticmethod
    def box(low: np.ndarray, high: np.ndarray) -> "ActionSpec":
        lows, highs = (tuple(np.ravel(x).astype(float).tolist()) for x in (low, high))
        return ActionSpec("box", (len(lows),), np.dtype(np.float32), low=lows, high=highs)

    def clip(self, action: np.ndarray) -> np.ndarray:
        """As the environment takes it: numbers of a box beyond its bounds become the bounds."""
        return np.clip(action, self.low, self.high) if self.kind == "box" else action

    def random(self, rng: np.random.Generator, rows: int) -> np.ndarray:
        if self.kind == "box":
            return rng.uniform(self.low, self.high, (rows, *self.shape)).astype(self.dtype)
        ns = self.ns or np.full(self.shape, self.n)
        return rng.integers(ns, size=(rows, *self.shape), dtype=self.dtype)

    def __str__(self) -> str:
        if self.kind == "discrete":
            return f"{self.n} actions"
        if self.kind == "multi_discrete":
            return f"multi-discrete actions ({', '.join(map(str, self.ns))})"
        return f"{self.shape[0]} continuous actions"


ACTION_MASK = "action_mask"  # an entry of observations: bool [n], which discrete actions are allowed


class EnvSpec(NamedTuple):
    """What the environments of a run are."""

    backend: str  # the library that steps them
    env_id: str
    options: dict[str, Any]  # for that library
    obs: Any  # a tree of ArraySpecs: one, or a dict of them, in which `action_mask` says what is allowed
    action: ActionSpec


def env_to_json(env: EnvSpec) -> dict[str, Any]:
    """As it is in models; a dict of observations is a JSON object."""

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
    numbers: dict[str, Any] = {
        name: tuple(x) if isinstance(x, list) else x for name, x in record["action"].items()
    }
    action = ActionSpec(**numbers | {"dtype": np.dtype(numbers["dtype"])})
    is_array = isinstance(arrays.get("shape"), list)
    tree: Any = array(arrays) if is_array else {name: array(x) for name, x in arrays.items()}
    options = {name: tuple(x) if isinstance(x, list) else x for name, x in record["options"].items()}
    return EnvSpec(record["backend"], record["env_id"], options, tree, action)


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

    def busy(self) -> list[int]:
        """Environments that are in the middle of a step, as far as that is known."""
        ...

    def render(self) -> np.ndarray:
        """An image of the first environment, u8 [height, width, 3], if they were made to be rendered."""
        ...

    def close(self) -> None: ...
