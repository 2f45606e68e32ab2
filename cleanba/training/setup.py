"""What is known of a run before its first thread starts."""

import shlex
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from jax.sharding import Mesh

from cleanba.agents.algorithm import Act, Algorithm, Decision, MakeAlgorithm, Play
from cleanba.agents.networks import fits_nature
from cleanba.algorithms import ALGORITHMS, name_of, source_digest
from cleanba.config.batch_plan import BatchPlan
from cleanba.config.errors import UsageError
from cleanba.config.flags import RunArgs
from cleanba.config.topology import Topology
from cleanba.envs.factory import env_spec
from cleanba.envs.spec import EnvSpec
from cleanba.evaluation.hub import find_model
from cleanba.evaluation.model import load_published
from cleanba.records.checkpoint import Saved
from cleanba.records.resume import StartPoint
from cleanba.runtime.devices import (
    actor_devices,
    check_devices_exist,
    learner_devices,
    learner_mesh,
    on_accelerator,
)
from cleanba.runtime.messages import say
from cleanba.runtime.tensors import named_leaves
from cleanba.sebulba.inference import call_like, decision_like
from cleanba.sebulba.learner import LearnerState, first_state
from cleanba.sebulba.rollout import env_ids_of_columns
from cleanba.sebulba.shapes import check_update, difference
from cleanba.sebulba.sharding import PER_LEARNER, from_process_0, put_on_learners
from cleanba.training.unused_flags import refuse, unread, watched

LONG_ON_A_CPU = 5_000_000  # steps with images


class Setup(NamedTuple):
    args: RunArgs
    topology: Topology
    plan: BatchPlan
    env: EnvSpec
    algorithm: Algorithm
    algorithm_name: str  # one of ALGORITHMS, or the path of the user's file
    source_digest: str | None  # of that file; None: Cleanba's own, which the commit says
    like: Decision  # shapes and types of a decision about one environment
    start: StartPoint

    @property
    def actor_devices(self) -> list[jax.Device]:
        """One per actor thread of this process."""
        return [d for d in actor_devices(self.topology) for _ in range(self.args.num_actor_threads)]

    @property
    def learner_devices(self) -> list[jax.Device]:
        """Those of this process."""
        return learner_devices(self.topology)

    @property
    def mesh(self) -> Mesh:
        return learner_mesh(self.topology)

    def env_id_of_columns(self, process: int) -> Array:
        """i32 [N]: which environments are in the columns of the learners' batch."""
        columns = env_ids_of_columns(self.plan, process)
        return put_on_learners(columns, PER_LEARNER, self.mesh, self.learner_devices)


class Keys(NamedTuple):
    init: Array
    act: Array
    minibatches: Array

    @staticmethod
    def split(key: Array) -> "Keys":
        return Keys(*jax.random.split(key, 3))


def make_setup(
    args: RunArgs, make_algorithm: MakeAlgorithm, processes: int = 1, start: StartPoint | None = None
) -> Setup:
    topology, plan, env = lay_out(args, processes)
    name, (seen, read) = name_of(type(args), make_algorithm), watched(args)
    is_own, start = name not in ALGORITHMS, start or StartPoint(args)
    algorithm = make_algorithm(seen if is_own else args, env, plan)
    check_devices_exist(topology)
    check_used(args, algorithm)
    like = checked_decision(algorithm, env)
    if is_own or algorithm.next_extra:
        check_update(algorithm, plan, env, like)
    if is_own and not start.resumes:  # a run of before has what it has
        refuse(unread(args, read))
    digest = source_digest(type(args), make_algorithm) if is_own else None
    return Setup(args, topology, plan, env, algorithm, name, digest, like, start)


def check_used(args: RunArgs, algorithm: Algorithm) -> None:
    """An algorithm may not know these flags, or not with these environments."""
    unused = {"--normalize-observations": args.normalize_observations and algorithm.next_extra is None}
    unused |= {"--normalize-rewards": args.normalize_rewards and algorithm.return_discount is None}
    has_memory = jax.tree.leaves(jax.eval_shape(lambda: algorithm.initial_state(1)))
    unused |= {"--recurrent": args.recurrent is not None and not has_memory}
    for name in (name for name, is_unused in unused.items() if is_unused):
        raise UsageError(f"{name} has no effect in this algorithm; leave it out")


def checked_decision(algorithm: Algorithm, env: EnvSpec) -> Decision:
    """What the engine packs, broadcasts and digests bit by bit must have four bytes per entry."""
    like, state = decision_like(algorithm, env), saved_like(algorithm).state
    leaves = named_leaves({**state.published._asdict(), **like._asdict()})
    for name, leaf in (leaves | named_leaves({"optimizer": state.opt_state})).items():
        if leaf.dtype.itemsize != 4:
            raise UsageError(f"the algorithm's {name} is {leaf.dtype}; give it a type of four bytes")
    theirs, ours = (like.action.shape, like.action.dtype), (env.action.shape, env.action.dtype)
    if theirs != ours:
        raise UsageError(f"the algorithm's actions are {theirs}, those of {env.env_id} {ours}")
    check_state("act", algorithm.act, algorithm, env)
    return like


def check_state(name: str, function: Act | Play, algorithm: Algorithm, env: EnvSpec) -> Any:
    """It must be like `initial_state`, into which it is written. Returns what `function` gives beside it."""
    given, state = call_like(function, algorithm, env)
    if problem := difference(jax.eval_shape(lambda: algorithm.initial_state(1)), state, "initial_state"):
        raise UsageError(f"the state that {name} gives has {problem}")
    return given


def lay_out(args: RunArgs, processes: int) -> tuple[Topology, BatchPlan, EnvSpec]:
    """Refuses flags that do not fit together."""
    topology = Topology(args.actor_device_ids, args.learner_device_ids, processes).check_ids()
    return topology, BatchPlan.create(args, topology), env_spec(args)


def saved_like(algorithm: Algorithm) -> Saved:
    """The shapes and types of what a checkpoint holds."""
    key = jax.random.key(0)
    return jax.eval_shape(lambda: Saved(first_state(algorithm, key), jax.random.key_data(key)))


def state_from_model(setup: Setup, key: Array, process: int) -> LearnerState:
    """That of a run that starts from a model's params, in all processes: only process 0 needs to see the
    file."""
    state = jax.device_get(jax.jit(partial(first_state, setup.algorithm))(key))
    if process == 0:
        path, algorithm = find_model(str(setup.args.init_from)), setup.algorithm
        params, extra = load_published(path, state.published)
        if extra is state.extra and jax.tree.leaves(extra):
            say(f"{path} has no statistics or other `extra` as this run keeps them: they start anew")
        state = LearnerState(params, jax.device_get(algorithm.optimizer.init(params)), extra)
    return from_process_0(state)


def restore(setup: Setup) -> Saved:
    """What process 0 has read, in all processes: only process 0 needs to see the file."""
    if previous := setup.start.previous:
        return from_process_0(previous.checkpoint.saved)
    zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), saved_like(setup.algorithm))
    return from_process_0(zeros)


def advice(setup: Setup) -> str | None:
    """One line for defaults that were made for a GPU, on a machine without one."""
    args = setup.args
    has_images = setup.algorithm.resolved.get("network") in ("impala", "nature") and fits_nature(setup.env)
    if on_accelerator() or not has_images or args.total_timesteps < LONG_ON_A_CPU or setup.start.previous:
        return None
    fitting = shlex.join(["cleanba", "ppo-fit", "--env-id", args.env_id])
    long = f"{args.total_timesteps:,} steps of {args.env_id} take many hours without a GPU, or days"
    return f"{long}; `{fitting}` is sized for this machine and takes minutes"
