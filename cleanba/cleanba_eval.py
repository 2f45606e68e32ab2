"""Play with a trained model: `cleanba eval PATH|HUB-ID`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import jax
import tyro
from rich.console import Console

from cleanba.sebulba.args import UsageError, file_name
from cleanba.sebulba.command import Ended, command, need_extra
from cleanba.sebulba.determinism import make_deterministic
from cleanba.sebulba.evaluate import evaluate, film_of, playing
from cleanba.sebulba.hub import find_model
from cleanba.sebulba.model import load_model


@dataclass(frozen=True)
class Args:
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PATH|HUB-ID")]
    """a model file, a run's folder, or a repository on the Hugging Face Hub"""
    episodes: int = 10
    """games to play; the first that begin count"""
    seed: int = 1
    """of the games and of the sampled actions"""
    video: bool = False
    """write an mp4 of the first game into the current folder"""


def run(args: Args, console: Console) -> None:
    if args.episodes < 1:
        raise UsageError(f"--episodes {args.episodes} is too small; give 1 or more")
    if not 0 <= args.seed < 2**32:
        raise UsageError(f"--seed {args.seed} is out of range; give a number from 0 to 2^32 - 1")
    if args.video:
        need_extra("--video", "imageio_ffmpeg", "video")
    model = load_model(find_model(args.model))
    name = f"{model.env.env_id}  ·  {model.args.exp_name}, seed {model.args.seed}, {model.steps:,} steps"
    show(console, f"{name}  ·  on {jax.local_devices()[0].device_kind}")
    video = Path(file_name(f"{model.env.env_id}__{model.args.exp_name}__{model.args.seed}__{args.seed}.mp4"))
    with film_of(model, video if args.video else None) as film, playing(console, args.episodes) as progress:
        result = evaluate(model, episodes=args.episodes, seed=args.seed, film=film, progress=progress)
    show(console, str(result))
    if film and film.problem:
        raise Ended(f"the video failed: {film.problem}")
    if film:
        show(console, f"video: {film.path}")


def show(console: Console, text: str) -> None:
    console.print(text, soft_wrap=True, highlight=False, markup=False)


def main(argv: list[str] | None = None, prog: str | None = None) -> None:
    with command() as console:
        make_deterministic()
        description = "Play with a trained model and report its returns."
        run(tyro.cli(Args, args=argv, prog=prog, description=description), console)


if __name__ == "__main__":
    main()
