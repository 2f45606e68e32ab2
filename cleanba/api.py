"""Cleanba from Python: train, load, evaluate, and list runs, in a script, a notebook or a thread.

`import cleanba; cleanba.train(...)`: the package gets these names from here when they are first used. They
do what the command line does; flags have its names, with underscores, its checks and its messages.
"""

import dataclasses
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

import gymnasium
import numpy as np
from rich.console import Console

from cleanba.algorithms import PRESETS, load_algorithm, load_file
from cleanba.config.command_line import Reader, reader_of, whole_number
from cleanba.config.errors import UsageError
from cleanba.config.flag_hints import hint
from cleanba.config.flags import RunArgs, check_types, flag, with_tuples
from cleanba.envs.gymnasium_envs import OWN, register
from cleanba.evaluation.evaluate import Evaluation, recording
from cleanba.evaluation.evaluate import evaluate as play_episodes
from cleanba.evaluation.model import load_model
from cleanba.evaluation.policy import Policy
from cleanba.records.columns import read_columns
from cleanba.records.outcome import Outcome
from cleanba.records.row import Row
from cleanba.records.run_model import find_run_model
from cleanba.records.run_status import run_status
from cleanba.runtime.command import need_extra
from cleanba.runtime.determinism import make_deterministic
from cleanba.runtime.messages import say, show
from cleanba.runtime.signals import handle_default_signals
from cleanba.training.train import SILENT, fit_machine, report_and_upload
from cleanba.training.train import train as train_args

MakeEnv = Callable[..., gymnasium.Env]


@dataclass(frozen=True)
class Training:
    """What a training has left."""

    folder: Path
    rows: dict[str, np.ndarray]  # by the metric's name, an entry per update, from the first one on
    policy: Policy
    stopped: bool  # by `on_update`, before the end; `resume=folder` continues it
    evaluation: Evaluation | None  # with save_model or capture_video
    model: Path | None  # the model file, with save_model

    def __repr__(self) -> str:
        steps = f"{self.policy.model.steps:,} steps"
        how = "stopped, can be resumed" if self.stopped else "finished"
        return f"Training({how} after {steps}: {self.folder})"


def train(
    algorithm: Any = "ppo",
    *,
    make_env: MakeEnv | None = None,
    on_update: Callable[[Row], object] | None = None,
    progress: bool = True,
    **flags: Any,
) -> Training:
    """Train, and return what came of it.

    algorithm: "ppo", "impala", a preset ("ppo_continuous"), the .py file of an algorithm or a preset of your
        own, its module, or an object of its Args.
    make_env: a class or function that makes one of your Gymnasium environments; it gets env_options as
        keywords. It is sent to worker processes, so whatever it refers to must be picklable. Its env_id is
        own/ and its name, unless you give another.
    on_update: called with the row of each update, a dict; True stops the run. A run that was stopped, and
        one in which `on_update` has raised an exception, leaves a checkpoint.
    progress: show what the command shows.
    flags: those of the command line: `total_timesteps=100_000`. `resume="runs/…"` continues a run; only the
        flags that are given with it change.

    Ctrl-C, the notebook's "interrupt" and SIGTERM raise `Stopped`, a KeyboardInterrupt, after a checkpoint
    was written; its message says how to go on. That works in the main thread: a training in another one is
    stopped by its `on_update`.
    """
    args, make_algorithm = resolve(algorithm, flags)
    _check_factory(make_env)
    if make_env and "env_id" not in flags and not isinstance(algorithm, RunArgs):
        args = dataclasses.replace(args, env_id=_id_of(make_env, args.resume))
    console = Console(force_jupyter=False) if progress else SILENT
    with handle_default_signals():
        outcome = train_args(
            args,
            make_algorithm,
            console,
            given=None if isinstance(algorithm, RunArgs) else set(flags),
            on_update=on_update or (lambda row: None),
            on_finish=partial(report_and_upload, console),
            make_env=make_env,
        )
    if outcome is None:
        raise UsageError("this is not process 0 of the job, which has the outcome")
    if outcome.stopped:
        steps = f"{outcome.last_row['global_step']:,} steps"
        show(console, f'stopped by on_update after {steps}; resume="{outcome.run_dir}" continues it')
    return _training(outcome)


def _id_of(make_env: MakeEnv, resume: str | None) -> str:
    recorded = run_status(Path(resume)).flags.get("env_id") if resume else None
    return str(recorded or OWN + (getattr(make_env, "__name__", "").strip("<>") or "env"))


def _check_factory(make_env: Any) -> None:
    if make_env is not None and not callable(make_env):
        raise UsageError(f"make_env is a class or function, not {make_env!r}; for a name use env_id")


def _training(outcome: Outcome) -> Training:
    return Training(
        folder=outcome.run_dir,
        rows=read_columns(outcome.run_dir),
        policy=Policy(outcome.model),
        stopped=outcome.stopped,
        evaluation=outcome.evaluation,
        model=outcome.saved,
    )


def load(
    model: str | Path,
    algorithm: Any = None,
    *,
    env_id: str | None = None,
    env_options: Mapping[str, Any] | None = None,
    make_env: MakeEnv | None = None,
    seed: int = 1,
) -> Policy:
    """The policy of a model: a file, a run folder, or a repository on the Hugging Face Hub.

    Nothing that a model names is imported unless it is named here, too: the `algorithm` that trained it, if
    that is not Cleanba's own (its .py file or module), and `env_id="module:Id"`, if it was trained in an
    environment that a module registers. `make_env` makes the environment of a training that had one, and
    gets the env_options of that. `env_options` go over those of the training. `seed` is that of sampled
    actions.
    """
    _check_factory(make_env)
    path, options = find_run_model(str(model)), with_tuples(dict(env_options or {}))
    make_deterministic()
    with _keywords():
        found = load_model(path, algorithm, options, env_id, is_own=make_env is not None)
    if make_env:
        register(found.env.env_id, make_env)
    return Policy(found, seed=seed)


def evaluate(
    model: "Policy | Training | str | Path",
    episodes: int = 10,
    *,
    seed: int = 1,
    greedy: bool = False,
    video: str | Path | None = None,
    algorithm: Any = None,
    env_id: str | None = None,
    env_options: Mapping[str, Any] | None = None,
    make_env: MakeEnv | None = None,
) -> Evaluation:
    """Play `episodes` in the environment of the training, as `cleanba eval` does: the first that begin count,
    and the same seed gives the same. `video` is the path of an mp4 of the first. The rest is for `load`, so
    only with a path or repository."""
    if episodes < 1:
        raise UsageError(f"episodes={episodes} is too small; give 1 or more")
    if not 0 <= seed < 2**32:
        raise UsageError(f"seed={seed} is out of range; give a number from 0 to 2^32 - 1")
    if video:
        need_extra("video", "imageio_ffmpeg", "video")
    how: Any = dict(algorithm=algorithm, env_id=env_id, env_options=env_options, make_env=make_env)
    if isinstance(model, str | Path):
        model = load(model, **how)
    elif given := ", ".join(name for name, value in how.items() if value is not None):
        raise UsageError(f"{given}: only with a path; a policy gets that from load(path, …)")
    policy = model.policy if isinstance(model, Training) else model
    with _keywords(), recording(policy.model, Path(video) if video else None) as film:
        evaluation = play_episodes(policy.model, episodes=episodes, seed=seed, greedy=greedy, video=film)
    if film and film.problem:
        say(f"the video failed: {film.problem}")
    return evaluation


@contextmanager
def _keywords() -> Iterator[None]:
    """Messages name what these functions take, instead of the command line's flags."""
    try:
        yield
    except UsageError as error:
        raise UsageError(_with_keywords(str(error))) from error


def _with_keywords(message: str) -> str:
    def options(found: re.Match[str]) -> str:
        with suppress(ValueError):  # a long one is cut off
            return f"env_options={json.loads(found[1])}"
        return f"env_options={found[1]}"

    message = re.sub(r"--env-options '(\{.*?\})'(?=$|[\s;,)])", options, message)
    message = re.sub(r"--(algorithm|env-id) ([^\s;,]+?)(?=$|:?\s|[;,])", r'--\1="\2"', message)
    return re.sub(r"(?<!\S)--(algorithm|env-id|env-options)\b", lambda m: m[1].replace("-", "_"), message)


# ------------------------------------------------------------------------------------------------- flags


def resolve(algorithm: Any, flags: dict[str, Any]) -> tuple[RunArgs, Callable[..., Any]]:
    """The arguments, and what makes the algorithm of them."""
    if isinstance(algorithm, RunArgs):
        args, module = algorithm, sys.modules[type(algorithm).__module__]
    else:
        module = _find(algorithm)
        args = getattr(module, "ARGS", None) or module.Args()
        if callable(args):
            args = fit_machine(args, flags.get("distributed", False), flags.get("deterministic", True))
        module = module if hasattr(module, "make_algorithm") else sys.modules[type(args).__module__]
    if not hasattr(module, "make_algorithm"):
        raise UsageError(f"{module.__name__}, which has the arguments, has no make_algorithm")
    known = [field.name for field in dataclasses.fields(args)]
    for name in flags.keys() - known:
        raise UsageError(hint(flag(name), known, "cleanba ppo"))
    readers = {name: reader_of(kind) for name, kind in get_type_hints(type(args)).items()}
    plain = {name: _plain(name, x, readers[name]) for name, x in flags.items()}
    for name, value in with_tuples(plain).items():
        args = dataclasses.replace(args, **{name: value})
        try:
            check_types(args)
        except UsageError as error:
            kind = inspect.formatannotation(get_type_hints(type(args))[name]).replace("typing.", "")
            raise UsageError(f"{error}; give {kind}") from None
    return args, module.make_algorithm


def _find(algorithm: Any) -> Any:
    """A module with Args and make_algorithm, or a preset's, with ARGS."""
    if not isinstance(algorithm, str | Path):
        return algorithm if hasattr(algorithm, "ARGS") else load_algorithm(algorithm)
    name = str(algorithm)
    if name.endswith(".py"):
        module = load_file(name)
        return module if hasattr(module, "ARGS") else load_algorithm(module)
    preset = name.removeprefix("cleanba_").replace("_", "-")
    return import_module(PRESETS[preset]) if preset in PRESETS else load_algorithm(name)


def _plain(name: str, value: Any, reader: Reader | None) -> Any:
    """What a program has instead of a command line's words: paths, dicts, numpy's numbers, 1e6. A word may
    still stand for a whole number: "150k"."""
    if isinstance(value, str) and reader and reader.read is whole_number and not reader.many:
        with suppress(ValueError):  # the check of types refuses it
            return whole_number(value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, np.generic):
        value = value.item()
    if name == "env_options" and isinstance(value, Mapping):
        return json.dumps(dict(value))
    if isinstance(value, float) and name == "total_timesteps" and value.is_integer():
        return int(value)
    return value
