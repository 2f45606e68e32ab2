"""Games with a trained policy, their returns, and a film of one."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from rich.console import Console

from cleanba.sebulba.envs import EVALUATION, Envs, Episode, EpisodeTracker, env_seeds, free_cores
from cleanba.sebulba.model import Model, check_environment
from cleanba.sebulba.networks import act
from cleanba.sebulba.video import Film
from cleanrl_utils.atari_scores import human_normalized

MOST_AT_ONCE = 64  # environments


class Evaluation(NamedTuple):
    env_id: str
    seed: int
    games: list[Episode]  # in the order in which they began

    def scores(self) -> dict[str, float]:
        """Of unclipped returns."""
        returns = np.array([game.episodic_return for game in self.games])
        numbers = {
            "episodic_return": returns.mean(),
            "episodic_return_std": returns.std(),
            "episodic_return_min": returns.min(),
            "episodic_return_max": returns.max(),
            "episodic_length": np.mean([game.length for game in self.games]),
        }
        normalized = human_normalized(self.env_id, returns.mean())
        if normalized is not None:
            numbers["human_normalized_score"] = normalized
        return {name: float(value) for name, value in numbers.items()}

    def __str__(self) -> str:
        scores = self.scores()
        games = "1 game" if len(self.games) == 1 else f"{len(self.games)} games"
        text = (
            f"{games} of {self.env_id}: return {scores['episodic_return']:.2f} "
            f"± {scores['episodic_return_std']:.2f} (from {scores['episodic_return_min']:g} to "
            f"{scores['episodic_return_max']:g}), length {scores['episodic_length']:.0f}"
        )
        if "human_normalized_score" in scores:
            text += (
                f"\nhuman-normalised score {scores['human_normalized_score']:.3f} (0 random play, 1 a human)"
            )
        return text

    def save(self, path: Path) -> None:
        games = [game._asdict() for game in self.games]
        record = {"env_id": self.env_id, "seed": self.seed, "scores": self.scores(), "games": games}
        path.write_text(json.dumps(record, indent=2) + "\n")


def evaluate(
    model: Model,
    *,
    episodes: int,
    seed: int,
    device: jax.Device | None = None,
    film: Film | None = None,
    progress: Callable[[int], Any] = lambda games: None,
) -> Evaluation:
    """Play with sampled actions in the environment of the training, through lost lives to game over.

    The first `episodes` games that begin count, whenever they end: those that end first are the short ones.
    """
    check_environment(model)
    num_envs = min(episodes, MOST_AT_ONCE)
    seeds = env_seeds((seed, EVALUATION), range(num_envs))
    envs = Envs(model.env, seeds, free_cores(), rendered=film is not None)
    choose = jax.jit(partial(act, model.policy, jax.random.fold_in(jax.random.key(seed), EVALUATION)))
    params = jax.device_put(model.params, device or jax.local_devices()[0])
    env_id = np.arange(num_envs, dtype=np.int32)
    game = np.arange(num_envs)  # that each environment plays: their numbers in order of their beginnings
    begun, finished = num_envs, dict[int, Episode]()
    tracker = EpisodeTracker(num_envs)
    envs.reset()
    obs = envs.receive().obs
    valid = np.ones(num_envs, np.bool_)
    step = 0
    while len(finished) < episodes:
        if film and 0 not in finished:
            film.add(envs.picture())
        decision = choose(params, obs, env_id, np.full(num_envs, step, np.int32))
        envs.send(np.asarray(decision.action), env_id)
        taken = envs.receive()
        for e, episode in tracker.add(taken, valid).items():
            if game[e] < episodes:
                finished[int(game[e])] = episode
                progress(len(finished))
            game[e] = begun
            begun += 1
        obs, valid = taken.obs, ~(taken.terminated | taken.truncated)
        step += 1
    return Evaluation(model.env.env_id, seed, [finished[number] for number in range(episodes)])


@contextmanager
def playing(console: Console, episodes: int) -> Iterator[Callable[[int], None]]:
    """Shows how many games are over, on a terminal."""
    with console.status(f"playing {episodes} games") as status:
        yield lambda finished: status.update(f"playing: {finished} of {episodes} games are over")


@contextmanager
def film_of(model: Model, path: Path | None) -> Iterator[Film | None]:
    """Of one game, an Atari game at its own speed; without a path there is none."""
    if path is None:
        yield None
        return
    skipped = model.env.options.get("frame_skip", 2)  # of sixty frames a second
    with Film(path, fps=60 / skipped) as film:
        yield film
