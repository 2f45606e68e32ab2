"""Every size that follows from the flags, checked once."""

import math
from typing import NamedTuple

from cleanba.config.errors import UsageError
from cleanba.config.flags import RunArgs, check_ranges
from cleanba.config.topology import Topology


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
    env_batch: int  # environments of an actor that are stepped together: all, or an inference batch
    chunks: int  # gradient programs per minibatch
    chunk_rows: int  # rows of each on one learner; the last chunk is padded

    @staticmethod
    def create(args: RunArgs, topology: Topology) -> "BatchPlan":
        check_ranges(args)
        learners = len(topology.learner_ids)
        over = f"over {learners} learners (--learner-device-ids)"
        check_divides("--local-num-envs", args.local_num_envs, learners, over)
        stepping = args.env_stepping or ("async" if args.concurrency else "sync")
        inference_batch = _inference_batch(args, stepping)
        actors = len(topology.actor_ids) * args.num_actor_threads
        num_envs = topology.processes * actors * args.local_num_envs
        batch_size = args.num_steps * num_envs
        if args.total_timesteps < batch_size:
            raise UsageError(
                f"--total-timesteps {args.total_timesteps} is less than one update of {args.num_steps} steps "
                f"x {num_envs} environments; give at least {batch_size}"
            )
        envs_per_learner = actors * args.local_num_envs // learners
        chunks, chunk_rows = _chunks(args, envs_per_learner)
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
            chunk_rows=chunk_rows,
        )


def _inference_batch(args: RunArgs, stepping: str) -> int:
    """By default all environments of a thread, or half of them (or a third) if they are stepped async."""
    envs = args.local_num_envs
    parts = (n for n in (2, 3) if stepping == "async" and envs % n == 0)
    size = args.inference_batch or envs // next(parts, 1)
    if envs % size:
        small = [n for n in range(1, min(math.isqrt(envs), 10**5) + 1) if envs % n == 0]
        divisors = sorted({*small, *(envs // n for n in small)})
        nearest = sorted(sorted(divisors, key=lambda n: abs(n - size))[:2])
        raise UsageError(
            f"--inference-batch {size} does not divide --local-num-envs {envs}; "
            f"try {' or '.join(map(str, nearest))}"
        )
    return size


def _chunks(args: RunArgs, envs_per_learner: int) -> tuple[int, int]:
    """How many gradient chunks a minibatch has, and the rows of each on one learner. A minibatch is cut
    between sequences of `sequence_length` rows, never inside one."""
    sequences = args.num_steps * envs_per_learner // args.sequence_length
    per_minibatch = sequences // args.num_minibatches
    if per_minibatch == 0:
        raise UsageError(
            f"--num-minibatches {args.num_minibatches} is too many for a learner with {envs_per_learner} "
            f"environments; give at most {sequences}"
        )
    per_chunk = max(1, args.gradient_chunk // args.sequence_length)
    chunks = args.gradient_accumulation_steps or math.ceil(per_minibatch / per_chunk)
    if chunks > per_minibatch:
        raise UsageError(
            f"--gradient-accumulation-steps {chunks} is more than a minibatch can be cut into on a "
            f"learner; give at most {per_minibatch}"
        )
    return chunks, math.ceil(per_minibatch / chunks) * args.sequence_length
