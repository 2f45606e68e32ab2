"""The flags that every algorithm has, and every size that follows from them, checked once."""

import dataclasses
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar

import tyro

if TYPE_CHECKING:
    from cleanba.sebulba.topology import Topology


class UsageError(Exception):
    """Something the user gave cannot work. One line that names the flag and the fix; exit code 2."""


# ------------------------------------------------------------------------------------------------- flags

CHUNK_FLAGS = tyro.conf.create_mutex_group(required=False, title="gradient chunks (one of the two)")


@dataclass(frozen=True)
class Experiment:
    exp_name: str = "cleanba"
    """name of the experiment; part of the run folder's name"""
    seed: int = 1
    """everything random in the run follows from it"""
    total_timesteps: int = 50_000_000
    """environment steps of the whole run; rounded down to whole updates"""
    log_frequency: int = 10
    """updates between two points in TensorBoard and Weights & Biases, and two lines on the terminal"""
    runs_dir: str = "runs"
    """where the run's folder is made"""
    profile: bool = False
    """trace a few updates with JAX's profiler, into the run's folder; of several processes the first"""


@dataclass(frozen=True)
class Environment:
    env_id: str = "Breakout-v5"
    """any EnvPool environment with discrete actions"""
    atari_preset: Literal["machado", "impala"] = "machado"
    """Atari settings: machado (sticky actions, all 18 actions, whole games) or impala (no sticky actions,
    minimal action set, a lost life ends an episode); other environments ignore it"""
    local_num_envs: int = 64
    """environments per actor thread"""
    num_steps: int = 128
    """steps of each environment per update"""
    env_stepping: Literal["sync", "async"] | None = None
    """how EnvPool is driven: sync waits for all environments of a thread at each step, async for an inference
    batch of those that are ready first; default: async with --concurrency, else sync. Changes no result at
    a given --inference-batch"""
    env_threads: int | None = None
    """EnvPool's threads per actor thread; default: the cores shared out, without an accelerator two kept free
    on machines with over four. Changes no result"""


@dataclass(frozen=True)
class Hardware:
    actor_device_ids: tuple[int, ...] = (0,)
    """devices that choose actions; may overlap with the learners'"""
    learner_device_ids: tuple[int, ...] = (0,)
    """devices that share the gradient"""
    num_actor_threads: int = 2
    """actor threads per actor device, each with its own environments"""
    concurrency: bool = False
    """act with the params of the update before the last one (policy lag 1), so that acting and learning
    overlap; off: they take turns (lag 0)"""
    inference_batch: int | None = None
    """rows per call of the policy; default: all environments of a thread if they are stepped in sync, half of
    them (a third, or all, if two does not divide them) if async. Can change the last bits"""
    gradient_chunk: Annotated[int, CHUNK_FLAGS] = 256
    """most rows per learner device in one gradient program; an optimizer step sums its chunks. Bounds memory;
    can change the last bits"""
    gradient_accumulation_steps: Annotated[int | None, CHUNK_FLAGS] = None
    """chunks per minibatch, instead of a largest chunk size"""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """precision of the network's layers; params, optimizer and losses are always float32"""
    deterministic: bool = True
    """have XLA compile for GPUs so that the same command gives the same bits; off: may be faster"""


@dataclass(frozen=True)
class Processes:
    distributed: bool = False
    """one learner over all processes of the job, found through SLURM's variables, or JAX_COORDINATOR_ADDRESS,
    JAX_NUM_PROCESSES and JAX_PROCESS_ID"""
    join_seconds: float = 60
    """how long the processes wait for each other at the start"""
    stuck_seconds: float = 600
    """a run that makes no progress for so long says where each thread stands, and ends"""


@dataclass(frozen=True)
class Network:
    network: Literal["auto", "impala", "nature", "mlp"] = "auto"
    """auto: impala for images, mlp otherwise"""
    channels: tuple[int, ...] = (16, 32, 32)
    """channels of the impala network's stages"""
    hiddens: tuple[int, ...] = (256,)
    """widths of the dense layers before the two heads"""


@dataclass(frozen=True)
class Learning:
    learning_rate: float = 2.5e-4
    """of the optimizer, at the start"""
    anneal_lr: bool = True
    """lower the learning rate linearly to 0 over the run"""
    gamma: float = 0.99
    """discount"""
    num_minibatches: int = 4
    """optimizer steps per pass over the batch"""
    ent_coef: float = 0.01
    """weight of the entropy bonus"""
    vf_coef: float = 0.5
    """weight of the value loss"""
    max_grad_norm: float = 0.5
    """gradients with a larger global norm are scaled down to it"""


@dataclass(frozen=True)
class Checkpoints:
    checkpoint_minutes: float = 10
    """between two checkpoints; there is one at the end, too, and when the run is stopped by a signal"""
    keep_checkpoints: int = 3
    """so many of the last ones are kept"""
    resume: Annotated[str | None, tyro.conf.arg(metavar="{None}|RUN_DIR|auto")] = None
    """go on with the run in this folder, with its arguments: only the layout, total steps, and what is logged
    and kept can be given anew. auto: the newest unfinished run with the same arguments, or a new one"""


@dataclass(frozen=True)
class Results:
    save_model: bool = False
    """at the end, save the model as {exp_name}.cleanrl_model and evaluate it in 10 games"""
    capture_video: bool = False
    """at the end, play 10 games and write an mp4 of the first"""
    upload_model: bool = False
    """at the end, save and evaluate the model and push it to the Hugging Face Hub, with its arguments"""
    hf_entity: str | None = None
    """user or organization on the Hub; default: the token's user"""
    track: bool = False
    """log to Weights & Biases, too"""
    wandb_project_name: str = "cleanRL"
    """project on Weights & Biases"""
    wandb_entity: str | None = None
    """user or team on Weights & Biases; default: that of the key"""


@dataclass(frozen=True)
class RunArgs(Results, Checkpoints, Learning, Network, Processes, Hardware, Environment, Experiment):
    """What the machinery reads. An algorithm's arguments add its own group to these."""

    @property
    def rows_together(self) -> int:
        """Rows of an environment that a gradient chunk must not separate."""
        return 1


Args = TypeVar("Args", bound=RunArgs)


def parse_args(
    default: Args, *, description: str, prog: str | None = None, argv: list[str] | None = None
) -> Args:
    """The flags of the command line over `default`. `--help` has one group per dataclass above."""
    groups = [cls for cls in reversed(type(default).__mro__) if _has_own_flags(cls)]
    nested = dataclasses.make_dataclass(
        "Flags", [(cls.__name__.lower(), cls, field(default=_part_of(default, cls))) for cls in groups]
    )
    flags: Any = tyro.cli(
        nested, args=argv, prog=prog, description=description, config=(tyro.conf.OmitArgPrefixes,)
    )
    given = {name: value for group in vars(flags).values() for name, value in vars(group).items()}
    return dataclasses.replace(default, **given)


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def with_tuples(flags: dict[str, Any]) -> dict[str, Any]:
    """Flags that were JSON, which has lists only."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in flags.items()}


def given_flags(argv: list[str]) -> set[str]:
    """The names of those on a command line."""
    names = {arg.split("=")[0][2:].replace("-", "_") for arg in argv if arg.startswith("--")}
    return names | {name.removeprefix("no_") for name in names}


def _has_own_flags(cls: type) -> bool:
    """Groups do; the sums of groups that inherit from them only change defaults."""
    return dataclasses.is_dataclass(cls) and not any(map(dataclasses.is_dataclass, cls.__bases__))


def _part_of(args: RunArgs, group: Any) -> Any:
    return group(**{f.name: getattr(args, f.name) for f in dataclasses.fields(group)})


# ------------------------------------------------------------------------------------------------ checks

MAY_BE_ZERO = {"seed", "ent_coef", "vf_coef", "actor_device_ids", "learner_device_ids"}
FRACTIONS = {"gamma", "gae_lambda"}  # from 0 to 1; every other number must be above 0


def check_ranges(args: RunArgs) -> None:
    for name, value in vars(args).items():
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, bool) or not isinstance(number, int | float):
                continue
            given = f"{flag(name)} {number}"
            if not math.isfinite(number):
                raise UsageError(f"{given} is not finite; give a number")
            if name in FRACTIONS and not 0 <= number <= 1:
                raise UsageError(f"{given} is out of range; give a number from 0 to 1")
            if name in MAY_BE_ZERO and number < 0:
                raise UsageError(f"{given} is negative; give 0 or more")
            if name not in MAY_BE_ZERO | FRACTIONS and number <= 0:
                raise UsageError(f"{given} is too small; give a number above 0")
    if args.seed >= 2**32:
        raise UsageError(f"--seed {args.seed} is too large; give a number below 2^32 = {2**32}")
    if not args.hiddens:
        raise UsageError("--hiddens is empty; give at least one width")
    if not args.channels:
        raise UsageError("--channels is empty; give at least one number of channels")


def file_name(text: str) -> str:
    """Of a file or folder; some environments' ids have a slash, and what users name may have anything."""
    return re.sub(r"[^\w.+-]", "-", text)


def check_divides(name: str, value: int, by: int, into: str) -> None:
    """Reject `value` unless it is a multiple of `by`, naming the nearest that are."""
    if value % by:
        nearest = [n for n in (value // by * by, (value // by + 1) * by) if n > 0]
        raise UsageError(f"{name} {value} cannot be split {into}; try {' or '.join(map(str, nearest))}")


class BatchPlan(NamedTuple):
    """Every size that follows from the flags. Rows are transitions; T is num_steps."""

    num_steps: int
    actors: int  # actor threads of this process
    envs_per_actor: int
    learners: int  # learner devices of this process
    envs_per_learner: int
    num_envs: int  # of all processes
    batch_size: int  # T * num_envs: rows per update, of all processes
    updates: int
    num_minibatches: int
    inference_batch: int  # rows per `act` call
    env_batch: int  # environments that EnvPool steps together, of an actor: all, or an inference batch
    chunks: int  # gradient programs per minibatch
    chunk_rows: int  # rows of each on one learner, the last one padded

    @staticmethod
    def create(args: RunArgs, topology: "Topology") -> "BatchPlan":
        check_ranges(args)
        learners = len(topology.learner_ids)
        check_divides(
            "--local-num-envs",
            args.local_num_envs,
            learners,
            f"over {learners} learners (--learner-device-ids)",
        )
        stepping = args.env_stepping or ("async" if args.concurrency else "sync")
        parts = (n for n in (2, 3) if stepping == "async" and args.local_num_envs % n == 0)
        inference_batch = args.inference_batch or args.local_num_envs // next(parts, 1)
        if args.local_num_envs % inference_batch:
            fits = [b for b in range(1, args.local_num_envs + 1) if args.local_num_envs % b == 0]
            nearest = sorted(sorted(fits, key=lambda b: abs(b - inference_batch))[:2])
            raise UsageError(
                f"--inference-batch {inference_batch} does not divide --local-num-envs "
                f"{args.local_num_envs}; try {' or '.join(map(str, nearest))}"
            )
        actors = len(topology.actor_ids) * args.num_actor_threads
        num_envs = topology.processes * actors * args.local_num_envs
        batch_size = args.num_steps * num_envs
        if args.total_timesteps < batch_size:
            raise UsageError(
                f"--total-timesteps {args.total_timesteps} is less than one update of {args.num_steps} steps "
                f"x {num_envs} environments; give at least {batch_size}"
            )
        envs_per_learner = actors * args.local_num_envs // learners
        most = args.num_steps * envs_per_learner // args.rows_together
        pieces = most // args.num_minibatches  # that a minibatch has on a learner, of `rows_together` each
        if pieces == 0:
            raise UsageError(
                f"--num-minibatches {args.num_minibatches} is too many for a learner with {envs_per_learner} "
                f"environments; give at most {most}"
            )
        largest = max(1, args.gradient_chunk // args.rows_together)
        chunks = args.gradient_accumulation_steps or math.ceil(pieces / largest)
        if chunks > pieces:
            raise UsageError(
                f"--gradient-accumulation-steps {chunks} is more than a minibatch can be cut into on a "
                f"learner; give at most {pieces}"
            )
        return BatchPlan(
            num_steps=args.num_steps,
            actors=actors,
            envs_per_actor=args.local_num_envs,
            learners=learners,
            envs_per_learner=envs_per_learner,
            num_envs=num_envs,
            batch_size=batch_size,
            updates=args.total_timesteps // batch_size,
            num_minibatches=args.num_minibatches,
            inference_batch=inference_batch,
            env_batch=inference_batch if stepping == "async" else args.local_num_envs,
            chunks=chunks,
            chunk_rows=math.ceil(pieces / chunks) * args.rows_together,
        )
