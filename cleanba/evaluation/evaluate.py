"""Evaluates a trained policy: returns of a number of episodes, and a video of the first."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from rich.console import Console

from cleanba.envs.episodes import Episode, EpisodeTracker
from cleanba.envs.factory import make_envs
from cleanba.envs.gymnasium_envs import render_fps
from cleanba.envs.seeding import EVALUATION, env_seeds
from cleanba.envs.spec import VectorEnv
from cleanba.evaluation.atari_scores import human_normalized
from cleanba.evaluation.model import Model, check_environment
from cleanba.evaluation.video import Video
from cleanba.runtime.files import atomic_write
from cleanba.runtime.machine import free_cores
from cleanba.runtime.messages import say

MAX_ENVS = 64
LONG_EPISODE = 100_000  # steps, after which a notice says how to end it


class Evaluation(NamedTuple):
    env_id: str
    seed: int
    episodes: list[Episode]  # in the order in which they began; Atari: whole games

    @property
    def returns(self) -> np.ndarray:
        """Of each episode, unclipped."""
        return np.array([episode.episodic_return for episode in self.episodes])

    def scores(self) -> dict[str, float]:
        """Statistics of the unclipped returns."""
        returns = self.returns
        numbers = {
            "episodic_return": returns.mean(),
            "episodic_return_std": returns.std(),
            "episodic_return_min": returns.min(),
            "episodic_return_max": returns.max(),
            "episodic_length": np.mean([episode.length for episode in self.episodes]),
        }
        normalized = human_normalized(self.env_id, returns.mean())
        if normalized is not None:
            numbers["human_normalized_score"] = normalized
        return {name: float(value) for name, value in numbers.items()}

    def __str__(self) -> str:
        scores = self.scores()
        episodes = "1 episode" if len(self.episodes) == 1 else f"{len(self.episodes)} episodes"
        text = (
            f"{episodes} of {self.env_id}: return {scores['episodic_return']:.2f} "
            f"± {scores['episodic_return_std']:.2f} (from {scores['episodic_return_min']:g} to "
            f"{scores['episodic_return_max']:g}), length {scores['episodic_length']:.0f}"
        )
        if "human_normalized_score" in scores:
            text += (
                f"\nhuman-normalised score {scores['human_normalized_score']:.3f} (0 random play, 1 a human)"
            )
        return text

    def save(self, path: Path) -> None:
        episodes = [episode._asdict() for episode in self.episodes]
        record = {"env_id": self.env_id, "seed": self.seed, "scores": self.scores(), "games": episodes}
        atomic_write(path, json.dumps(record, indent=2).encode() + b"\n")


def evaluate(
    model: Model,
    *,
    episodes: int,
    seed: int,
    greedy: bool = False,
    device: jax.Device | None = None,
    video: Video | None = None,
    progress: Callable[[int], Any] = lambda finished: None,
) -> Evaluation:
    """Play with sampled (or the most probable) actions in the training environment; an Atari episode is a
    whole game, through lost lives to game over.

    The first `episodes` that begin count, whenever they end: the first to end are the short ones.
    """
    check_environment(model)
    num_envs = min(episodes, MAX_ENVS)
    seeds = env_seeds((seed, EVALUATION), range(num_envs))
    rendered, patience = video is not None, model.args.stuck_seconds
    with closing(make_envs(model.env, seeds, free_cores(), rendered=rendered, patience=patience)) as envs:
        finished = _play(model, envs, num_envs, episodes, seed, greedy, device, video, progress)
    return Evaluation(model.env.env_id, seed, [finished[n] for n in range(episodes)])


def _play(
    model: Model,
    envs: VectorEnv,
    num_envs: int,
    episodes: int,
    seed: int,
    greedy: bool,
    device: jax.Device | None,
    video: Video | None,
    progress: Callable[[int], Any],
) -> dict[int, Episode]:
    """The episodes, by the order in which they began."""
    key = jax.random.fold_in(jax.random.key(seed), EVALUATION)
    play = jax.jit(partial(model.algorithm.play, key, greedy=greedy))
    published = jax.device_put(model.published, device or jax.local_devices()[0])
    state = model.algorithm.initial_state(num_envs)
    env_id = np.arange(num_envs, dtype=np.int32)
    number = np.arange(num_envs)  # [N] which episode each environment is playing, in the order they began
    begun, finished = num_envs, dict[int, Episode]()
    tracker = EpisodeTracker(num_envs)
    envs.reset()
    obs = envs.receive().obs
    if video:
        video.add(envs.render())
    valid = np.ones(num_envs, np.bool_)
    episode_start = np.ones(num_envs, np.bool_)
    step, said = 0, False
    while len(finished) < episodes:
        filmed = video if 0 not in finished else None
        steps = np.full(num_envs, step, np.int32)
        action, state = play(published, obs, state, episode_start, env_id, steps)
        envs.send(np.asarray(action), env_id)
        env_step = envs.receive()
        if filmed:
            filmed.add(envs.render())  # before the environment begins its next episode
        for e, episode in tracker.add(env_step, valid).items():
            if number[e] < episodes:
                finished[int(number[e])] = episode
                progress(len(finished))
            number[e] = begun
            begun += 1
        if (long := tracker.length == LONG_EPISODE).any() and not said:
            said = True
            say(
                f"episode {number[long][0] + 1} has lasted {LONG_EPISODE:,} steps; "
                "--env-options '{\"max_episode_steps\": …}' ends them"
            )
        obs, episode_start = env_step.obs, ~valid
        valid = ~(env_step.terminated | env_step.truncated)
        step += 1
    return finished


@contextmanager
def show_progress(console: Console, episodes: int) -> Iterator[Callable[[int], None]]:
    """Show on a terminal how many episodes have finished."""
    with console.status(f"evaluating for {episodes} episodes") as status:
        yield lambda finished: status.update(f"evaluating: {finished} of {episodes} episodes finished")


def recording(model: Model, path: Path | None) -> AbstractContextManager[Video | None]:
    """A video to pass to `evaluate`, in which the environment runs at its own speed; None if there is no
    path."""
    if path is None:
        return nullcontext()
    check_environment(model)
    known = render_fps(model.env) if model.env.backend == "gymnasium" else None
    return Video(path, fps=known or 60 / model.env.options.get("frame_skip", 2))  # Atari has 60 a second
