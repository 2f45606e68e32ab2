"""The seam between an algorithm and the machinery: a record of pure functions."""

from collections.abc import Callable
from typing import Any, NamedTuple

import optax
from jax import Array

from cleanba.sebulba.args import BatchPlan, RunArgs

Params = Any  # pytrees
Batch = Any
Statistics = Any


def linear_schedule(args: RunArgs, plan: BatchPlan) -> Callable[[int], float]:
    """The learning rate as a function of the update's index: counts of optimizer steps would shift it when
    epochs are skipped."""

    def learning_rate(update: int) -> float:
        return args.learning_rate * (1 - update / plan.updates if args.anneal_lr else 1.0)

    return learning_rate


class Slots(NamedTuple):
    """Which rows `[t, env]` of a learner's batch a gradient chunk takes; `mask` is False on padding."""

    t: Array  # i32
    env: Array  # i32, a column of the learner's batch
    mask: Array  # bool


class Loss(NamedTuple):
    """Sums over the rows of one chunk. The learner adds them up over chunks and learners, then divides."""

    total: Array  # what is differentiated
    denominator: Array | None  # the gradient is that of the summed totals over the summed denominators;
    #                            None: of the summed totals
    metrics: dict[str, Array]
    rows: Array  # logged metrics are the summed metrics over the summed rows


class Algorithm(NamedTuple):
    init: Callable[[Array], Params]  # key
    act: Callable[..., Any]  # params, obs [B, ...], env_id [B], step [B] -> Decision
    prepare: Callable[..., Batch]  # params, rollout -> what the loss needs of each [t, env]; once per update
    minibatches: Callable[[Array, Array], Slots]  # key, env_id [N] -> [M, chunks, ...]; once per epoch
    statistics: Callable[..., Statistics]  # rows of one whole minibatch, mask, global_sum -> for its loss
    loss: Callable[..., Loss]  # params, rows of one chunk, mask, statistics
    optimizer: optax.GradientTransformation  # without the learning rate
    learning_rate: Callable[[int], float]  # of the update's index
    epochs: int  # passes over the batch
    stop_early: Callable[[dict[str, float]], bool] | None = None  # after an epoch with these mean metrics
