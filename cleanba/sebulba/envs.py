"""Environments: EnvPool behind a small adapter, and the Atari presets."""

import difflib
import functools
import os
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import envpool
import gymnasium.spaces as spaces  # a dependency of EnvPool's
import numpy as np

from cleanba.sebulba.args import RunArgs, UsageError

# gymnasium complains of the bounds in EnvPool's own spaces
warnings.filterwarnings("ignore", message=".*precision lowered by casting to float32")

ATARI_COMMON = dict(
    use_fire_reset=True,  # some games wait for FIRE at their start
    reward_clip=True,  # to -1, 0 or 1 for learning, Mnih et al. 2015; reported returns are raw
    max_episode_steps=27_000,  # 108,000 frames, half an hour of play: Hessel et al. 2018
    frame_skip=4,  # Mnih et al. 2015
    img_height=84,  # Mnih et al. 2015
    img_width=84,  # Mnih et al. 2015
    gray_scale=True,  # Mnih et al. 2015
    stack_num=4,  # Mnih et al. 2015
)
ATARI_PRESETS: dict[str, dict[str, Any]] = {
    "machado": dict(
        **ATARI_COMMON,
        repeat_action_probability=0.25,  # sticky actions: Machado et al. 2017
        full_action_space=True,  # all 18: Machado et al. 2017
        episodic_life=False,  # an episode is a game: Machado et al. 2017
        noop_max=1,  # sticky actions bring the randomness: Machado et al. 2017; 1 is EnvPool's least
    ),
    "impala": dict(
        **ATARI_COMMON,
        repeat_action_probability=0.0,  # Espeholt et al. 2018
        full_action_space=False,  # Espeholt et al. 2018
        episodic_life=True,  # a lost life ends an episode: Espeholt et al. 2018
        noop_max=30,  # up to 30 idle steps at the start: Mnih et al. 2015, Espeholt et al. 2018
    ),
}


EVALUATION, RESUMED = 1, 2  # with a run's seed, other seeds: of other games


class EnvSpec(NamedTuple):
    """What the environments of a run are."""

    env_id: str
    options: dict[str, Any]  # for EnvPool
    obs_shape: tuple[int, ...]
    obs_dtype: np.dtype
    num_actions: int

    @property
    def is_image(self) -> bool:
        return len(self.obs_shape) == 3 and self.obs_dtype == np.uint8

    @property
    def stack(self) -> int:
        """So many frames are in an observation, of which the last one is new; 1: all of it is."""
        stack = self.options.get("stack_num", 1)
        return stack if self.is_image and self.obs_shape[0] == stack else 1


class EnvStep(NamedTuple):
    """What one step of B environments gave. After `terminated | truncated` the next step is a reset: EnvPool
    ignores that action, and the row is not a transition."""

    env: np.ndarray  # i32 [B], which of the pool's environments
    obs: np.ndarray  # [B, ...]
    reward: np.ndarray  # f32 [B], for learning: clipped on Atari
    terminated: np.ndarray  # bool [B], also on a lost life under episodic_life
    truncated: np.ndarray  # bool [B]
    raw_reward: np.ndarray  # f32 [B], for reporting
    game_over: np.ndarray  # bool [B]: the game ended or was cut off


class Envs:
    """The environments of one actor thread. They are sent actions, and received in batches of one size: all
    of them, in their order, or fewer, in the order in which they are ready."""

    def __init__(
        self,
        env: EnvSpec,
        seeds: Sequence[int],
        threads: int,
        *,
        batch: int | None = None,  # None: all
        background: bool = False,  # let every other thread of the machine go first
        rendered: bool = False,
    ):
        self.batch = batch or len(seeds)
        self._env_id = env.env_id
        make = partial(
            envpool.make,
            env.env_id,
            env_type="gymnasium",
            num_envs=len(seeds),
            batch_size=self.batch,
            env_seed=list(seeds),
            num_threads=min(threads, len(seeds)),
            **env.options | ({"render_mode": "rgb_array"} if rendered else {}),
        )
        self._pool: Any = _in_background(make) if background else make()
        self._encode = _encoding(_spaces(env.env_id, **env.options)[0])[2]

    def reset(self) -> None:
        """All begin, and can be received: of this first step only the observation means something."""
        self._pool.async_reset()

    def send(self, action: np.ndarray, env: np.ndarray) -> None:
        """Actions [B] for as many environments."""
        self._pool.send(action, env)

    def receive(self) -> EnvStep:
        obs, reward, terminated, truncated, info = self._pool.recv()
        game_ended = info["terminated"] != 0 if "terminated" in info else terminated
        return EnvStep(
            env=info["env_id"],
            obs=self._encode(obs),
            reward=reward.astype(np.float32),
            terminated=terminated,
            truncated=truncated,
            raw_reward=info.get("reward", reward).astype(np.float32),
            game_over=game_ended | truncated,
        )

    def picture(self) -> np.ndarray:
        """The first environment's own, u8 [height, width, 3]; the environments must be `rendered`."""
        try:
            return self._pool.render(env_ids=[0])[0]
        except RuntimeError as error:
            raise UsageError(f"{self._env_id} cannot be filmed: {error}; leave the video out") from error


class Episode(NamedTuple):
    episodic_return: float
    length: int


class EpisodeTracker:
    """Returns and lengths of finished games, over raw rewards, through lost lives, without reset rows."""

    def __init__(self, num_envs: int):
        self._return = np.zeros(num_envs, np.float64)
        self._length = np.zeros(num_envs, np.int64)

    def add(self, step: EnvStep, valid: np.ndarray) -> dict[int, Episode]:
        """Count one step; the games that ended with it, by environment."""
        self._return[step.env] += step.raw_reward * valid
        self._length[step.env] += valid
        ended = step.env[step.game_over & valid]
        episodes = {int(e): Episode(float(self._return[e]), int(self._length[e])) for e in ended}
        self._return[ended] = 0
        self._length[ended] = 0
        return episodes


# ------------------------------------------------------------------------------------- from flags to pools


def env_spec(args: RunArgs) -> EnvSpec:
    """With the Atari preset for Atari games; other environments have no options."""
    preset = ATARI_PRESETS[args.atari_preset]
    is_atari = preset.keys() <= set(_make_spec(args.env_id).config._fields)
    return describe(args.env_id, preset if is_atari else {})


def describe(env_id: str, options: dict[str, Any]) -> EnvSpec:
    """Shapes and number of actions, without starting an environment."""
    observations, actions = _spaces(env_id, **options)
    if not isinstance(actions, spaces.Discrete):
        kind = "continuous" if isinstance(actions, spaces.Box) else type(actions).__name__
        raise UsageError(
            f"--env-id {env_id} has {kind} actions, which are not supported yet; choose an environment "
            "with discrete actions"
        )
    shape, dtype, _ = _encoding(observations)
    return EnvSpec(env_id, options, shape, dtype, int(actions.n))


def env_seeds(seed: int | Sequence[int], env_ids: Sequence[int] | range) -> list[int]:
    """The seed of each environment from its global index: neighbours, so that no two are the same, from a
    start that is far away for every `seed`, of a run or one of its RESUMED parts or an EVALUATION of it. 31
    bits, EnvPool's range."""
    start = int(np.random.SeedSequence(seed).generate_state(1)[0])
    return [(start + e) % 2**31 for e in env_ids]


def env_threads(args: RunArgs, actors: int, *, background: bool) -> int:
    """EnvPool's threads per actor."""
    cores = len(os.sched_getaffinity(0)) if background else free_cores()
    return args.env_threads or max(1, cores // actors)


def free_cores() -> int:
    """On larger machines two are left to Python and XLA."""
    cores = len(os.sched_getaffinity(0))
    return cores - 2 if cores > 4 else cores


def _in_background(make: Callable[[], Any]) -> Any:
    """Threads inherit the policy of the one that starts them, and a thread cannot get its own back."""

    def in_background() -> Any:
        with suppress(OSError, AttributeError):  # some sandboxes and systems do not have it
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # 0: this thread
        return make()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(in_background).result()


def _make_spec(env_id: str, **options: Any) -> Any:
    if env_id not in envpool.list_all_envs():
        known = {name.lower(): name for name in envpool.list_all_envs()}
        nearest = [known[n] for n in difflib.get_close_matches(env_id.lower(), known, n=3, cutoff=0.6)]
        hint = (
            f"did you mean {', '.join(nearest)}?" if nearest else "envpool.list_all_envs() lists what exists"
        )
        raise UsageError(f"--env-id {env_id} is not an EnvPool environment; {hint}")
    try:
        return envpool.make_spec(env_id, **options)
    except ImportError as missing_system_library:
        raise UsageError(f"--env-id {env_id}: {missing_system_library}") from missing_system_library


@functools.cache
def _spaces(env_id: str, **options: Any) -> tuple[Any, Any]:
    """Of observations and of actions."""
    spec = _make_spec(env_id, **options)
    return spec.gymnasium_observation_space, spec.gymnasium_action_space


def _encoding(space: Any) -> tuple[tuple[int, ...], np.dtype, Callable[[Any], np.ndarray]]:
    """Shape, dtype and encoder that make one array per environment of whatever EnvPool's space is: boxes stay
    as they are, discrete observations become one-hot, dicts one flat vector of their entries."""
    match space:
        case spaces.Discrete():
            one_hot = np.eye(int(space.n), dtype=np.float32)
            return (int(space.n),), one_hot.dtype, lambda obs: one_hot[obs.reshape(len(obs))]
        case spaces.Dict():
            parts = {name: _encoding(part) for name, part in space.items()}
            width = sum(int(np.prod(shape)) for shape, _, _ in parts.values())

            def encode(obs: Any) -> np.ndarray:
                flat = [part[2](obs[name]) for name, part in parts.items()]
                return np.concatenate([x.reshape(len(x), -1) for x in flat], axis=1, dtype=np.float32)

            return (width,), np.dtype(np.float32), encode
        case spaces.Box(dtype=np.float64):
            return space.shape, np.dtype(np.float32), lambda obs: obs.astype(np.float32)
        case spaces.Box():
            return space.shape, np.dtype(space.dtype), lambda obs: obs
        case _:
            kind = type(space).__name__
            raise UsageError(f"--env-id has observations of the kind {kind}; choose an environment without")
