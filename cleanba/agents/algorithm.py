"""The seam between an algorithm (PPO, IMPALA, your own) and the engine: a NamedTuple of pure functions, and
the data they see.

Axes: T time, N environments, B rows of a call or a chunk, M minibatches. A tree is any pytree of arrays.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import optax
from jax import Array

from cleanba.config.batch_plan import BatchPlan
from cleanba.config.flags import RunArgs
from cleanba.envs.spec import EnvSpec

Params = Any  # a tree; what is differentiated
Extra = (
    Any  # a tree with leaves of four bytes per entry; what travels with the params and is not differentiated
)
State = Any  # a tree [B, ...]; what travels with an environment; empty for memoryless policies
Batch = Any
Statistics = Any
GlobalSum = Callable[[Array], Array]  # over all learners of all processes


class Published(NamedTuple):
    """One version of what acts and learns, and what a model file holds."""

    params: Params
    extra: Extra = ()


class Decision(NamedTuple):
    """What an actor does, and what it writes down beside the action."""

    action: Any  # [B, ...], as the environments' ActionSpec has it
    record: Any  # the algorithm's own tree of leaves [B, ...] with four bytes per entry


class Rollout(NamedTuple):
    """T steps of N environments."""

    obs: Any  # a tree [T+1, N, ...]; row T only for bootstrapping
    action: Any  #     [T, N, ...]
    record: Any  #     what the algorithm wrote down with each action, a tree [T, N, ...]
    reward: Any  # f32 [T, N]
    terminated: Any  # bool [T, N]
    truncated: Any  #  bool [T, N]
    valid: Any  #      bool [T, N], False on a reset row: not a transition
    discounted_return: Any = ()  # f32 [T, N]: of each environment's episode so far; if the algorithm asks
    episode_start: Any = ()  # bool [T+1, N]: first observations of episodes; only with a state
    first_state: Any = ()  # a tree [N, ...]: each environment's state before its first step
    last_state: Any = ()  # and after its last


class PerEnv(NamedTuple):
    """A part of a batch with one row per environment, [N, ...] and not [T, N, ...]. A chunk of whole
    sequences has the rows of its columns."""

    values: Any


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


class Act(Protocol):
    def __call__(
        self,
        key: Array,
        published: Published,
        obs: Any,
        state: State,
        episode_start: Array,  # bool [B]: the first observation of an episode
        env_id: Array,  # i32 [B], global indices
        step: Array,  # i32 [B], of each environment
    ) -> tuple[Decision, State]: ...


class Play(Protocol):
    def __call__(
        self,
        key: Array,
        published: Published,
        obs: Any,
        state: State,
        episode_start: Array,
        env_id: Array,
        step: Array,
        *,
        greedy: bool,
    ) -> tuple[Array, State]:
        """Actions for an evaluation."""
        ...


class Prepare(Protocol):
    def __call__(self, published: Published, rollout: Rollout) -> Batch: ...


class Minibatches(Protocol):
    def __call__(self, key: Array, env_id: Array) -> Slots:
        """Of the environments [N] in a learner's columns; slots [M, chunks, ...]."""
        ...


class StatisticsOf(Protocol):
    def __call__(self, rows: Batch, mask: Array, global_sum: GlobalSum) -> Statistics: ...


class LossOf(Protocol):
    def __call__(self, published: Published, rows: Batch, mask: Array, statistics: Statistics) -> Loss: ...


class NextExtra(Protocol):
    def __call__(
        self, published: Published, rollout: Rollout, metrics: dict[str, Array], global_sum: GlobalSum
    ) -> Extra:
        """From the params after an update and the extra before it. (`prepare` and `loss` see the extra that
        their rollout was acted under, which is older at policy lag 1.)"""
        ...


class Algorithm(NamedTuple):
    init: Callable[[Array], Published]  # from a key
    act: Act
    play: Play
    prepare: Prepare  # what the loss needs of each [t, env]; once per update
    minibatches: Minibatches  # which rows each gradient chunk takes; once per epoch
    statistics: StatisticsOf  # of one whole minibatch, for its loss
    loss: LossOf  # of one chunk; the gradient is by the params only
    optimizer: optax.GradientTransformation  # without the learning rate
    learning_rate: Callable[[int, Extra], float]  # of the update's index and the extra it starts with
    epochs: int  # passes over the batch
    stop_early: Callable[[dict[str, float]], bool] | None = None  # after an epoch with these mean metrics
    next_extra: NextExtra | None = None  # once per update, from its rollout and its mean metrics
    initial_state: Callable[[int], State] = lambda envs: ()
    return_discount: float | None = None  # ask for Rollout.discounted_return: sums of rewards that reach
    #                                       back through updates, where older ones count this much less
    resolved: dict[str, Any] = {}  # what it resolved from its flags, for args.json  # noqa: RUF012


MakeAlgorithm = Callable[[Any, EnvSpec, BatchPlan], Algorithm]


def linear_schedule(args: RunArgs, plan: BatchPlan) -> Callable[[int, Extra], float]:
    """The learning rate as a function of the update's index, which skipped epochs do not shift."""

    def learning_rate(update: int, extra: Extra) -> float:
        return args.learning_rate * (1 - update / plan.updates if args.anneal_lr else 1.0)

    return learning_rate
