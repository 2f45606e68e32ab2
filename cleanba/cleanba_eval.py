"""Evaluate a trained model: `cleanba eval PATH|HUB-ID`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import jax
import tyro
from rich.console import Console

from cleanba.config.command_line import parse_command
from cleanba.config.errors import UsageError
from cleanba.envs.spaces import parse_options
from cleanba.evaluation.evaluate import evaluate, recording, show_progress
from cleanba.evaluation.model import load_model
from cleanba.records.run_model import LATEST, find_run_model
from cleanba.runtime.command import CleanExit, command, need_extra
from cleanba.runtime.determinism import make_deterministic
from cleanba.runtime.files import file_name
from cleanba.runtime.messages import printable, show


@dataclass(frozen=True)
class Args:
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PATH|HUB-ID")]
    """a model file, a run folder, `latest` (the model below runs/ that was saved last), or a repository on
    the Hugging Face Hub"""
    episodes: int = 10
    """number of episodes; the first that begin count"""
    seed: int = 1
    """seed of the environments and of the sampled actions"""
    greedy: bool = False
    """take the most probable action instead of sampling"""
    algorithm: str | None = None
    """the .py file of the algorithm that trained the model, if it is not one of Cleanba's own; it is
    executed"""
    env_id: str | None = None
    """the environment that the model was trained in, as module:Id, if it is not one of EnvPool's or
    Gymnasium's own; the module is executed"""
    env_options: Annotated[str, tyro.conf.arg(metavar="JSON")] = "{}"
    """options of the environment, over those the model was trained with, as in '{"num_levels": 0}'"""
    video: bool = False
    """write an mp4 of the first episode into the current folder"""


def run(args: Args, console: Console) -> None:
    if args.episodes < 1:
        raise UsageError(f"--episodes {args.episodes} is too small; give 1 or more")
    if not 0 <= args.seed < 2**32:
        raise UsageError(f"--seed {args.seed} is out of range; give a number from 0 to 2^32 - 1")
    if args.video:
        need_extra("--video", "imageio_ffmpeg", "video")
    file = find_run_model(args.model)
    if args.model == LATEST:
        show(console, printable(str(file)))
    model = load_model(file, args.algorithm, parse_options(args.env_options), args.env_id)
    name = f"{model.env.env_id}  ·  {model.args.exp_name}, seed {model.args.seed}, {model.steps:,} steps"
    show(console, f"{printable(name)}  ·  on {jax.local_devices()[0].device_kind}")
    path = Path(file_name(f"{model.env.env_id}__{model.args.exp_name}__{model.args.seed}__{args.seed}.mp4"))
    with (
        recording(model, path if args.video else None) as video,
        show_progress(console, args.episodes) as progress,
    ):
        options: Any = dict(episodes=args.episodes, seed=args.seed, greedy=args.greedy)
        result = evaluate(model, **options, video=video, progress=progress)
    show(console, str(result))
    if video and video.problem:
        raise CleanExit(f"the video failed: {video.problem}")
    if video:
        show(console, f"video: {video.path}")


def main(argv: list[str] | None = None, prog: str | None = None) -> None:
    with command() as console:
        make_deterministic()
        description = "Evaluate a trained model and report its returns."
        run(parse_command(Args, argv=argv, prog=prog, description=description), console)


if __name__ == "__main__":
    main()
