"""Games with a trained policy: their returns, a video, and the command `cleanba eval`."""

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Annotated, Any, NamedTuple, cast

import jax
import numpy as np
import tyro
from rich.console import Console

from cleanba.sebulba.args import UsageError
from cleanba.sebulba.command import command, need_extra
from cleanba.sebulba.envs import Envs, Episode, EpisodeTracker, env_seeds, free_cores
from cleanba.sebulba.model import Model, check_environment, find_model, load_model
from cleanba.sebulba.networks import act
from cleanrl_utils.atari_scores import human_normalized

MOST_AT_ONCE = 64  # environments
EVALUATION = 1  # with the seed: other games than those of a training run with the same seed


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
        text = (
            f"{len(self.games)} games of {self.env_id}: return {scores['episodic_return']:.2f} "
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
    video: Path | None = None,
    progress: Callable[[int], Any] = lambda games: None,
) -> Evaluation:
    """Play with sampled actions in the environment of the training, through lost lives to game over.

    The first `episodes` games that begin count, whenever they end: those that end first are the short ones.
    """
    check_environment(model)
    num_envs = min(episodes, MOST_AT_ONCE)
    seeds = env_seeds((seed, EVALUATION), range(num_envs))
    envs = Envs(model.env, seeds, free_cores(), rendered=video is not None)
    choose = jax.jit(partial(act, model.policy, jax.random.fold_in(jax.random.key(seed), EVALUATION)))
    params = jax.device_put(model.params, device or jax.local_devices()[0])
    env_id = np.arange(num_envs, dtype=np.int32)
    game = np.arange(num_envs)  # that each environment plays: their numbers in order of their beginnings
    begun, finished = num_envs, dict[int, Episode]()
    tracker = EpisodeTracker(num_envs)
    with Film(envs, video, model.env.options) as film:
        obs = envs.reset()
        valid = np.ones(num_envs, np.bool_)
        step = 0
        while len(finished) < episodes:
            if 0 not in finished:
                film.shoot()
            decision = choose(params, obs, env_id, np.full(num_envs, step, np.int32))
            taken = envs.step(np.asarray(decision.action))
            ended = np.flatnonzero(taken.game_over & valid)
            for e, episode in zip(ended, tracker.add(taken, valid), strict=True):
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


class Film:
    """An mp4 of the first environment's own picture, at the game's speed; without a path it does nothing."""

    def __init__(self, envs: Envs, path: Path | None, options: dict[str, Any]):
        self._envs = envs
        self._path = path
        self._fps = 60 / options["frame_skip"] if "frame_skip" in options else 30
        self._encoder: subprocess.Popen[bytes] | None = None

    def shoot(self) -> None:
        if self._path is None:
            return
        picture = self._envs.picture()
        enlarged = max(1, 480 // min(picture.shape[:2]))  # whole pixels stay sharp
        picture = picture.repeat(enlarged, axis=0).repeat(enlarged, axis=1)
        if self._encoder is None:
            height, width, _ = picture.shape
            self._encoder = _start_encoder(self._path, height, width, self._fps)
        cast(IO[bytes], self._encoder.stdin).write(picture.tobytes())

    def __enter__(self) -> "Film":
        return self

    def __exit__(self, *error: Any) -> None:
        if self._encoder is not None:
            _, complaint = self._encoder.communicate()
            if self._encoder.returncode:
                raise RuntimeError(f"the video encoder failed: {complaint.decode(errors='replace')}")


def _start_encoder(path: Path, height: int, width: int, fps: float) -> "subprocess.Popen[bytes]":
    """That of imageio-ffmpeg. Not through its own functions: they fork in a way that jax warns of."""
    import imageio_ffmpeg  # an extra

    given = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", f"{fps:g}", "-i", "-"]
    even = "pad=ceil(iw/2)*2:ceil(ih/2)*2"  # as the pixel format needs it
    made = ["-vf", even, "-c:v", "libx264", "-crf", "20", "-pix_fmt", "yuv420p", "-movflags", "+faststart"]
    ffmpeg = imageio_ffmpeg.get_ffmpeg_exe()
    return subprocess.Popen(
        [ffmpeg, "-y", "-loglevel", "error", *given, *made, str(path)],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


# -------------------------------------------------------------------------------------------- the command


@dataclass(frozen=True)
class EvalArgs:
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PATH|HUB-ID")]
    """a model file, a run's folder, or a repository on the Hugging Face Hub"""
    episodes: int = 10
    """games to play; the first that begin count"""
    seed: int = 1
    """of the games and of the sampled actions"""
    video: bool = False
    """write an mp4 of the first game into the current folder"""


def main(argv: list[str] | None = None, prog: str | None = None) -> None:
    with command() as console:
        args = tyro.cli(
            EvalArgs,
            args=argv,
            prog=prog,
            description="Play with a trained model and report its returns.",
        )
        run(args, console)


def run(args: EvalArgs, console: Console) -> None:
    if args.episodes < 1:
        raise UsageError(f"--episodes {args.episodes} is too small; give 1 or more")
    if not 0 <= args.seed < 2**32:
        raise UsageError(f"--seed {args.seed} is out of range; give a number from 0 to 2^32 - 1")
    if args.video:
        need_extra("--video", "imageio_ffmpeg", "video")
    path = find_model(args.model)
    model = load_model(path)
    flags = model.args
    console.print(
        f"{flags.env_id}  ·  {flags.exp_name}, seed {flags.seed}, {model.steps:,} steps  ·  "
        f"on {jax.local_devices()[0].device_kind}",
        soft_wrap=True,
        highlight=False,
    )
    video = Path(f"{flags.env_id}__{flags.exp_name}__{flags.seed}.mp4") if args.video else None
    with playing(console, args.episodes) as progress:
        result = evaluate(model, episodes=args.episodes, seed=args.seed, video=video, progress=progress)
    console.print(str(result), soft_wrap=True, highlight=False)
    if video:
        console.print(f"video: {video}", soft_wrap=True, highlight=False)
