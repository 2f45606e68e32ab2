"""After the training: the model is saved, evaluated, filmed and shared. What fails there loses nothing."""

import shlex
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import jax
from rich.console import Console

from cleanba.sebulba.args import RunArgs, file_name
from cleanba.sebulba.command import Ended, first_line, need_extra, say
from cleanba.sebulba.envs import Envs, EnvSpec
from cleanba.sebulba.evaluate import Evaluation, evaluate, film_of, playing
from cleanba.sebulba.hub import check_upload, repo_name, upload
from cleanba.sebulba.metrics import Row, Writer, check_key
from cleanba.sebulba.model import SUFFIX, save_model
from cleanba.sebulba.records import Outcome

GAMES = 10  # of the evaluation after a run


def check_wishes(args: RunArgs, env: EnvSpec) -> None:
    """Before the training: that what is to happen after it can."""
    if args.track:
        need_extra("--track", "wandb", "track")
        check_key()
    if args.capture_video:
        need_extra("--capture-video", "imageio_ffmpeg", "video")
        envs = Envs(env, seeds=[0], threads=1, rendered=True)
        envs.reset()
        envs.receive()
        envs.picture()
    if args.upload_model:
        check_upload(args)


def finish(
    args: RunArgs, outcome: Outcome, device: jax.Device, writers: list[Writer], console: Console
) -> Outcome:
    """Evaluate, if the model is kept or a film is asked for."""
    if not outcome.saved and not args.capture_video:
        return outcome
    video = outcome.run_dir / "replay.mp4" if args.capture_video else None
    with surviving("the evaluation", outcome):
        with film_of(outcome.model, video) as film, playing(console, GAMES) as progress:
            evaluation = evaluate(
                outcome.model, episodes=GAMES, seed=args.seed, device=device, film=film, progress=progress
            )
        if film and film.problem:
            say(f"the video failed: {film.problem}")
        evaluation.save(outcome.run_dir / "evaluation.json")
        row = evaluation_row(evaluation, outcome.model.steps)
        for writer in writers:
            writer.write(row)
        outcome = outcome._replace(evaluation=evaluation)
    return outcome


def keep_model(args: RunArgs, outcome: Outcome) -> Outcome:
    if not (args.save_model or args.upload_model):
        return outcome
    path = outcome.run_dir / file_name(f"{args.exp_name}{SUFFIX}")
    try:
        save_model(path, outcome.model)
    except OSError as error:
        raise Ended(f"the model could not be saved ({error.strerror})") from error
    return outcome._replace(saved=path)


def evaluation_row(evaluation: Evaluation, steps: int) -> Row:
    return {"global_step": steps} | {f"eval/{name}": value for name, value in evaluation.scores().items()}


def share(outcome: Outcome, console: Console) -> None:
    try:
        with console.status("uploading the model"):
            address = upload(outcome.run_dir, outcome.model, outcome.evaluation)
    except Exception as error:
        folder = shlex.quote(str(outcome.run_dir))
        say(
            f"the upload failed ({type(error).__name__}: {first_line(error)}); the model is kept in "
            f"{outcome.saved}; try again with: hf upload {repo_name(outcome.model.args)} {folder} . "
            "--exclude 'wandb/*' 'checkpoints/*'"
        )
    else:
        console.print(f"uploaded to {address}", soft_wrap=True, highlight=False)


@contextmanager
def surviving(what: str, outcome: Outcome) -> Iterator[None]:
    """A failure is said, with the end of its traceback, and does not end the run."""
    try:
        yield
    except Exception:
        say(traceback.format_exc(limit=-4, chain=False).rstrip())
        kept = f"the model is kept in {outcome.saved}" if outcome.saved else f"see {outcome.run_dir}"
        say(f"{what} failed; {kept}")
