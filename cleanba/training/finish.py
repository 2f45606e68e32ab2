"""Around the training: what can be checked before it, and the model, evaluation, video and upload after it.
A failure after the training loses nothing."""

import shlex
import traceback
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import jax
from rich.console import Console

from cleanba.config.errors import UsageError
from cleanba.config.flags import RunArgs
from cleanba.envs.factory import make_envs, origin
from cleanba.evaluation.evaluate import evaluate, recording, show_progress
from cleanba.evaluation.header import Header, check_bounds
from cleanba.evaluation.hub import check_upload, find_model, repo_name, upload
from cleanba.evaluation.model import SUFFIX, load_published, save_model
from cleanba.records.checkpoint import saved_bytes
from cleanba.records.outcome import VIDEO, Outcome
from cleanba.records.recorder import RunRecorder
from cleanba.records.run_folder import EVALUATION
from cleanba.records.wandb_logger import check_key
from cleanba.runtime.command import CleanExit, need_extra
from cleanba.runtime.files import file_name, free_bytes, write_when_possible
from cleanba.runtime.messages import first_line, printable, say, show
from cleanba.runtime.tensors import byte_size
from cleanba.training.setup import Setup, check_state, saved_like

EPISODES = 10  # of the evaluation after a run


def preflight(setup: Setup) -> None:
    """Before the training: that it can start, and that everything that is to happen after it can."""
    args, env = setup.args, setup.env
    check_origin(setup)
    if args.init_from and not setup.start.previous:
        template = jax.eval_shape(setup.algorithm.init, jax.random.key(0))
        load_published(find_model(args.init_from), template)
    if args.track:
        need_extra("--track", "wandb", "track")
        check_key()
    if args.capture_video:
        need_extra("--capture-video", "imageio_ffmpeg", "video")
        patience = args.stuck_seconds
        with closing(make_envs(env, seeds=[0], threads=1, rendered=True, patience=patience)) as envs:
            envs.reset()
            envs.receive()
            envs.render()
    if args.upload_model:
        check_upload(args)
    if args.save_model or args.capture_video or args.upload_model:
        check_play(setup)
        check_model(setup)
    check_room(setup)


def check_origin(setup: Setup) -> None:
    """What `--env-backend auto` takes depends on what is installed, and on who calls."""
    if previous := setup.start.previous:
        now = origin(setup.env)
        if (was := previous.record.get("env_origin", now)) != now:
            raise UsageError(
                f"the {setup.env.env_id} of {previous.run_dir} is from {printable(str(was))}, here it is "
                f"from {now}; resume it with the command that started it, and with the same packages"
            )


def check_model(setup: Setup) -> None:
    """What a model asks for is bounded where it is loaded."""
    try:
        check_bounds(Header("", vars(setup.args), setup.env, 0, None))
    except ValueError as error:
        raise UsageError(f"a model of this run could not be loaded again: {error}") from None


def check_play(setup: Setup) -> None:
    """It is called for the first time when all training is done."""
    env, play = setup.env, setup.algorithm.play
    for greedy in (False, True):
        action = check_state("play", partial(play, greedy=greedy), setup.algorithm, env)
        theirs, ours = (action.shape[1:], action.dtype), (env.action.shape, env.action.dtype)
        if theirs != ours:
            raise UsageError(f"play gives actions {theirs}, those of {env.env_id} are {ours}")


def check_room(setup: Setup) -> None:
    """For the checkpoints that are kept and one more, and for the model."""
    args, previous = setup.args, setup.start.previous
    folder = previous.run_dir if previous else Path(args.runs_dir)
    published = jax.eval_shape(setup.algorithm.init, jax.random.key(0))
    needed = (args.keep_checkpoints + 1) * byte_size(saved_like(setup.algorithm)) + byte_size(published)
    needed -= saved_bytes(folder) if previous else 0
    room = free_bytes(folder)
    if room is not None and room < needed:
        has, need = (f"{size / 2**20:,.1f} MiB" for size in (room, needed))
        wanted = f"{args.keep_checkpoints + 1} checkpoints and the model need {need}"
        fix = "free some, or give another --runs-dir or --keep-checkpoints"
        raise UsageError(f"{folder} has room for {has}, but {wanted}; {fix}")


def keep_model(args: RunArgs, outcome: Outcome, *, in_a_hurry: bool = False) -> Outcome:
    """Save the model, if that was asked for."""
    if not (args.save_model or args.upload_model):
        return outcome
    path = outcome.run_dir / file_name(f"{args.exp_name}{SUFFIX}")
    save = partial(save_model, path, outcome.model, with_probe=not in_a_hurry)
    try:
        write_when_possible(save, "the model", 0 if in_a_hurry else args.stuck_seconds)
    except OSError as error:
        raise CleanExit(f"the model could not be saved ({error.strerror})") from error
    return outcome._replace(saved=path)


def evaluate_outcome(
    args: RunArgs, outcome: Outcome, device: jax.Device, recorder: RunRecorder, console: Console
) -> Outcome:
    """Evaluate, if the model was saved or a video was asked for."""
    if not outcome.saved and not args.capture_video:
        return outcome
    model = outcome.model
    path = outcome.run_dir / VIDEO if args.capture_video else None
    with log_and_continue("the evaluation", outcome):
        with recording(model, path) as video, show_progress(console, EPISODES) as progress:
            evaluation = evaluate(
                model, episodes=EPISODES, seed=args.seed, device=device, video=video, progress=progress
            )
        if video and video.problem:
            say(f"the video failed: {video.problem}")
        evaluation.save(recorder.locate() / EVALUATION)
        scores = {f"eval/{name}": value for name, value in evaluation.scores().items()}
        recorder.write_scores({"global_step": model.steps} | scores)
        outcome = outcome._replace(evaluation=evaluation)
    return keep_again(args, outcome, recorder)


def keep_again(args: RunArgs, outcome: Outcome, recorder: RunRecorder) -> Outcome:
    """After a while: the run's folder may have been moved or deleted."""
    recorder.save()
    outcome = outcome._replace(run_dir=recorder.run_dir)
    if outcome.saved is None:
        return outcome
    saved = outcome.run_dir / outcome.saved.name
    return outcome._replace(saved=saved) if saved.exists() else keep_model(args, outcome)


def upload_outcome(outcome: Outcome, console: Console) -> None:
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
        show(console, f"uploaded to {address}")


@contextmanager
def log_and_continue(what: str, outcome: Outcome) -> Iterator[None]:
    """A failure in the body is printed, with the end of its traceback, and does not end the run."""
    try:
        yield
    except Exception:
        say(traceback.format_exc(limit=-4, chain=False).rstrip())
        kept = f"the model is kept in {outcome.saved}" if outcome.saved else f"see {outcome.run_dir}"
        say(f"{what} failed; {kept}")
