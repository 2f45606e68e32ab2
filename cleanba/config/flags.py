"""The flags that every algorithm has: groups of fields, their defaults and help, their ranges."""

import builtins
import dataclasses
import inspect
import math
import sys
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_origin

import tyro

from cleanba.config.command_line import KINDS, Flag, check_words, help_texts, wrapped
from cleanba.config.errors import UsageError
from cleanba.config.marks import (
    CAN_CHANGE,
    CHANGES_NO_BIT,
    FRACTION,
    NOT_NEGATIVE,
    ONLY_LOGS,
    POSITIVE,
    SEED,
    Range,
    marks_of,
)

MAX_VALUES = 64  # of one flag: layers of a network, or devices
MAX_WHOLE = 2**53  # of any flag: what JSON and float64 still count exactly


@dataclass(frozen=True)
class Experiment:
    exp_name: str = "cleanba"
    """name of the experiment; part of the run folder's name"""
    seed: Annotated[int, SEED] = 1
    """of everything random in the run"""
    total_timesteps: Annotated[int, POSITIVE, CAN_CHANGE] = 50_000_000
    """environment steps of the whole run, rounded down to whole updates"""
    log_frequency: Annotated[int, POSITIVE, ONLY_LOGS] = 10
    """updates from one point to the next in TensorBoard and Weights & Biases, and from one printed line to
    the next"""
    runs_dir: Annotated[str, ONLY_LOGS] = "runs"
    """folder in which the run's own folder is made"""
    profile: Annotated[bool, ONLY_LOGS] = False
    """trace a few updates with JAX's profiler, into the run's folder; only process 0 does"""


@dataclass(frozen=True)
class Environment:
    env_id: str = "Breakout-v5"
    """any EnvPool or Gymnasium environment, `cleanba envs` lists them; or one of your own, as module:Id: the
    module is imported, and registers the id"""
    env_backend: Literal["auto", "envpool", "gymnasium"] = "auto"
    """what steps the environments: EnvPool's threads, or worker processes with Gymnasium's environments;
    auto: EnvPool where it has the id"""
    env_options: Annotated[str, tyro.conf.arg(metavar="JSON")] = "{}"
    """options of the environment, over those of its preset, as in '{"frame_skip": 2}'; `cleanba envs ID`
    lists them"""
    atari_preset: Literal["machado", "impala"] = "machado"
    """Atari settings: machado (sticky actions, all 18 actions, whole games) or impala (no sticky actions,
    minimal action set, a lost life ends an episode); other environments ignore it"""
    frame_stack: Annotated[int | None, Range(1, 16)] = None
    """frames in an observation of Atari and others that stack them, 1 for a policy with a memory; default:
    that of the preset"""
    local_num_envs: Annotated[int, POSITIVE, CAN_CHANGE] = 64
    """environments per actor thread"""
    num_steps: Annotated[int, POSITIVE] = 128
    """steps of each environment per update"""
    env_stepping: Annotated[Literal["sync", "async"] | None, CAN_CHANGE, CHANGES_NO_BIT] = None
    """sync waits for all environments of a thread at each step, async for as many as fill an inference batch;
    default: async with --concurrency, else sync. Changes no result at a given --inference-batch"""
    env_threads: Annotated[int | None, POSITIVE, CAN_CHANGE, CHANGES_NO_BIT] = None
    """EnvPool's threads, or worker processes, per actor thread; default: the cores shared out among actor
    threads, of which machines without an accelerator and with more than four cores keep two free. Changes no
    result"""


@dataclass(frozen=True)
class Hardware:
    actor_device_ids: Annotated[tuple[int, ...], NOT_NEGATIVE, CAN_CHANGE] = (0,)
    """devices that choose actions; may also be learners"""
    learner_device_ids: Annotated[tuple[int, ...], NOT_NEGATIVE, CAN_CHANGE] = (0,)
    """devices that share the gradient"""
    num_actor_threads: Annotated[int, POSITIVE, CAN_CHANGE] = 2
    """actor threads per actor device, each with its own environments"""
    concurrency: bool = False
    """let acting and learning overlap: actors use params that are one update old (policy lag 1); off: they
    take turns (policy lag 0)"""
    inference_batch: Annotated[int | None, POSITIVE, CAN_CHANGE] = None
    """environments per call of the policy; default: all of a thread if stepped in sync, half of them if async
    (or a third, or all, whichever divides them). Can change the last bits"""
    gradient_chunk: Annotated[int, POSITIVE, CAN_CHANGE] = 256
    """maximum rows per learner device in one gradient computation, but at least one whole sequence of IMPALA
    or of a policy with a memory; an optimizer step sums its chunks. Bounds memory; can change the last
    bits"""
    gradient_accumulation_steps: Annotated[int | None, POSITIVE, CAN_CHANGE] = None
    """number of chunks per minibatch; give this or --gradient-chunk; default: by --gradient-chunk"""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """precision of the network's layers; params, optimizer and losses are always float32"""
    deterministic: Annotated[bool, CAN_CHANGE] = True
    """use deterministic operations only, so that the same command gives the same bits on GPUs too; off: may
    be faster"""


@dataclass(frozen=True)
class Processes:
    MARKS: ClassVar = (ONLY_LOGS,)

    distributed: bool = False
    """train with all processes of the job as one learner; they find each other through SLURM's variables, or
    JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID"""
    join_seconds: Annotated[float, POSITIVE] = 60
    """how long processes wait for each other at the start"""
    stuck_seconds: Annotated[float, POSITIVE] = 600
    """a run that makes no progress for this long, or does not end, prints where each thread is and exits"""


@dataclass(frozen=True)
class Network:
    network: Literal["auto", "impala", "nature", "mlp"] = "auto"
    """auto: impala for images, mlp otherwise"""
    channels: Annotated[tuple[int, ...], POSITIVE] = (16, 32, 32)
    """channels of the impala network's stages"""
    hiddens: Annotated[tuple[int, ...], POSITIVE] = (256,)
    """widths of the dense layers before the policy and value heads"""
    activation: Literal["auto", "tanh", "relu", "elu", "swish"] = "auto"
    """of the dense layers; auto: relu with images, tanh otherwise"""
    separate_critic: bool = False
    """give the value dense layers of its own, instead of sharing those of the policy"""
    recurrent: Literal["lstm", "gru"] | None = None
    """give the policy a memory, between the dense layers and the heads; default: none"""
    recurrent_width: Annotated[int, POSITIVE] = 256
    """numbers that the memory holds"""
    last_action_reward: bool = False
    """let the policy also see its last action and the reward for it, zeros at the start of an episode"""


@dataclass(frozen=True)
class Learning:
    init_from: Annotated[str | None, tyro.conf.arg(metavar="PATH|HUB-ID")] = None
    """start from the params of this model: a file, a run folder, or a repository on the Hugging Face Hub"""
    learning_rate: Annotated[float, POSITIVE] = 2.5e-4
    """initial learning rate"""
    anneal_lr: bool = True
    """anneal the learning rate linearly to 0 over the run"""
    gamma: Annotated[float, FRACTION] = 0.99
    """discount factor"""
    num_minibatches: Annotated[int, POSITIVE] = 4
    """minibatches per epoch; each is one optimizer step"""
    max_grad_norm: Annotated[float, POSITIVE] = 0.5
    """maximum global norm of the gradient; larger ones are scaled down"""


@dataclass(frozen=True)
class Normalization:
    normalize_observations: bool = False
    """scale observations, except images, by the mean and deviation of all observations so far"""
    normalize_rewards: bool = False
    """divide rewards by the deviation of all discounted returns so far; reported returns stay as they are"""


@dataclass(frozen=True)
class Checkpoints:
    MARKS: ClassVar = (ONLY_LOGS,)

    checkpoint_minutes: Annotated[float, POSITIVE] = 10
    """minutes from one checkpoint to the next; the end of the run and a signal that stops it also write
    one"""
    keep_checkpoints: Annotated[int, POSITIVE] = 3
    """keep the last k checkpoints"""
    resume: Annotated[str | None, tyro.conf.arg(metavar="RUN_DIR|auto")] = None
    """continue the run in this folder with its arguments; only the layout, --total-timesteps, and what is
    logged and saved can change. auto: the newest unfinished run with the same arguments, or else a new run"""


@dataclass(frozen=True)
class Results:
    MARKS: ClassVar = (ONLY_LOGS,)

    save_model: bool = False
    """at the end, save the model as {exp_name}.cleanrl_model and evaluate it for 10 episodes"""
    capture_video: bool = False
    """at the end, evaluate for 10 episodes and write an mp4 of the first"""
    upload_model: bool = False
    """at the end, save and evaluate the model and upload it to the Hugging Face Hub"""
    hf_entity: str | None = None
    """user or organization on the Hub; default: the owner of the token"""
    track: bool = False
    """also log to Weights & Biases"""
    wandb_project_name: str = "cleanRL"
    """project on Weights & Biases"""
    wandb_entity: str | None = None
    """user or team on Weights & Biases; default: the owner of the API key"""


@dataclass(frozen=True)
class RunArgs(
    Results, Checkpoints, Normalization, Learning, Network, Processes, Hardware, Environment, Experiment
):
    """What the engine reads. An algorithm's arguments add a group of their own."""

    @property
    def sequence_length(self) -> int:
        """Consecutive rows of an environment that a gradient chunk keeps together."""
        return 1


Args = TypeVar("Args", bound=RunArgs)


def parse_args(
    default: Args, *, description: str, prog: str | None = None, argv: list[str] | None = None
) -> Args:
    """The flags of the command line over `default`. `--help` has one group per class with flags of its
    own."""
    argv = sys.argv[1:] if argv is None else argv
    groups = flag_groups(default)
    check_words([flag for flags in groups.values() for flag in flags], argv, prog)
    flags: Any = tyro.cli(
        as_groups(groups),
        args=argv,
        prog=prog,
        description=wrapped(description),
        config=(tyro.conf.OmitArgPrefixes,),
    )
    chunk_flags = given_flags(argv) & {"gradient_chunk", "gradient_accumulation_steps"}
    if len(chunk_flags) > 1:
        raise UsageError(f"{' and '.join(map(flag, sorted(chunk_flags)))} exclude each other; give one")
    given = {name: value for group in vars(flags).values() for name, value in vars(group).items()}
    return dataclasses.replace(default, **given)


def as_groups(groups: dict[str, list[Flag]]) -> type:
    """A dataclass of dataclasses, one per group, for tyro."""
    made = {
        name: dataclasses.make_dataclass(name, [flag.field() for flag in flags], frozen=True)
        for name, flags in groups.items()
    }
    return dataclasses.make_dataclass(
        "Flags", [(name, cls, field(default_factory=cls)) for name, cls in made.items()]
    )


def flag_groups(default: RunArgs) -> dict[str, list[Flag]]:
    """One per class with flags of its own, in the order of the help."""
    groups: dict[str, list[Flag]] = {}
    for cls in reversed(type(default).__mro__):
        name = "algorithm" if cls.__name__ == "Args" else cls.__name__.lower()
        groups.setdefault(name, []).extend(_own_flags(cls, default))
    return {name: flags for name, flags in groups.items() if flags}


def _own_flags(cls: type, default: RunArgs) -> Iterator[Flag]:
    """What one class adds to the flags. Type and help come from the last class that gives them."""
    if "__dataclass_fields__" not in vars(cls):
        if issubclass(cls, RunArgs) and inspect.get_annotations(cls):
            raise UsageError(
                f"class {cls.__name__} has flags of its own; put @dataclass(frozen=True) above it"
            )
        return
    inherited = {name for base in cls.__mro__[1:] for name in inspect.get_annotations(base)}
    for name in [f.name for f in dataclasses.fields(cls) if f.name not in inherited]:
        kinds = [inspect.get_annotations(c, eval_str=True).get(name) for c in type(default).__mro__]
        helps = [help_texts(c).get(name) for c in type(default).__mro__ if dataclasses.is_dataclass(c)]
        kind, text = next(filter(None, kinds)), next(filter(None, helps), "")
        own = Flag(name, kind, text, getattr(default, name))
        if not own.is_switch and (own.reader is None or own.reader.read is Path):
            kind = inspect.formatannotation(kind).replace("typing.", "")
            raise UsageError(f"{flag(name)} cannot be of type {kind}; {KINDS}")
        yield own


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def with_tuples(flags: dict[str, Any]) -> dict[str, Any]:
    """Flags read from JSON, which has lists only."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in flags.items()}


def given_flags(argv: list[str]) -> set[str]:
    """Names of the flags on a command line."""
    names = {arg.split("=")[0][2:].replace("-", "_") for arg in argv if arg.startswith("--")}
    return names | {name.removeprefix("no_") for name in names}


def check_types(args: RunArgs) -> None:
    """For flags that come from a file: those of a command line have the right types."""
    kinds: dict[str, Any] = {}
    for cls in reversed(type(args).__mro__):  # a subclass may give a flag another type
        kinds |= inspect.get_annotations(cls, eval_str=True)
    for name, kind in kinds.items():
        if name != "MARKS" and not _is_of(getattr(args, name), kind):
            raise UsageError(f"{flag(name)} cannot be {getattr(args, name)!r}")


def _is_of(value: Any, kind: Any) -> bool:
    parts = get_args(kind)
    match get_origin(kind) or kind:
        case typing.Annotated:
            return _is_of(value, parts[0])
        case typing.Literal:
            return any(type(value) is type(part) and value == part for part in parts)
        case typing.Union | types.UnionType:
            return any(_is_of(value, part) for part in parts)
        case builtins.tuple if parts:
            size = None if parts[-1] is ... else len(parts)
            fits = isinstance(value, tuple) and size in (None, len(value))
            return fits and all(_is_of(x, parts[0]) for x in value)
        case builtins.float:
            return isinstance(value, int | float) and not isinstance(value, bool)
        case builtins.int:
            return type(value) is int
        case plain if isinstance(plain, type):
            return isinstance(value, plain)
    return True  # a user's own kind of flag


def check_ranges(args: RunArgs) -> None:
    for name, marks in marks_of(type(args)).items():
        value = getattr(args, name)
        limits = [mark for mark in marks if isinstance(mark, Range)]
        if isinstance(value, tuple) and len(value) > MAX_VALUES:
            raise UsageError(f"{flag(name)} has {len(value)} values; give at most {MAX_VALUES}")
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, bool) or not isinstance(number, int | float):
                continue
            given = f"{flag(name)} {number}"
            if isinstance(number, int) and abs(number) > MAX_WHOLE:
                raise UsageError(f"{flag(name)} {number:.3g} is too large; give at most {MAX_WHOLE}")
            if not math.isfinite(number):
                raise UsageError(f"{given} is not finite; give a number")
            for problem in filter(None, (limit.problem(number) for limit in limits)):
                raise UsageError(f"{given} {problem}")
    if not args.hiddens:
        raise UsageError("--hiddens is empty; give at least one width")
    if not args.channels:
        raise UsageError("--channels is empty; give at least one number of channels")
