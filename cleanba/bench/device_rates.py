"""How fast inference, learning and copies are alone, on random data."""

import time
from functools import partial

import jax
import numpy as np

from cleanba.agents.algorithm import Decision, Rollout
from cleanba.bench.ceilings import Work, steps_per_second
from cleanba.config.batch_plan import BatchPlan
from cleanba.envs.frame_stack import DeviceFrameStack
from cleanba.envs.spec import EnvSpec
from cleanba.sebulba.env_states import EnvStates
from cleanba.sebulba.inference import compile_act
from cleanba.sebulba.learner import Learner
from cleanba.sebulba.rollout import RolloutBuffer, env_ids_of_actors
from cleanba.sebulba.sharding import on_device
from cleanba.training.setup import Keys, Setup


class DeviceBench:
    """What the actors and the learner do on their devices, on random data."""

    def __init__(self, setup: Setup):
        self._setup = setup
        self._plan = setup.plan
        self._keys = Keys.split(jax.random.key(setup.args.seed))
        self._learner = Learner(setup.algorithm, setup.plan, setup.mesh, self._keys.minibatches)
        self._state = self._learner.init(self._keys.init)
        with_returns = setup.algorithm.return_discount is not None
        self._env_states = setup.algorithm.initial_state(setup.plan.envs_per_actor)
        stateful = bool(jax.tree.leaves(self._env_states))
        self._rollout = random_rollout(setup.plan, setup.env, setup.like, with_returns, stateful)
        self._env_id = setup.env_id_of_columns(process=0)

    def infer(self, seconds: float, repeats: int) -> list[float]:
        """Steps per second from observations on the host to actions on the host, one thread per actor."""
        setup, plan = self._setup, self._plan
        act = compile_act(setup.algorithm)
        rng, rows = np.random.default_rng(setup.args.seed), plan.inference_batch
        obs = [spec.random(rng, rows, only_new=True) for spec in jax.tree.leaves(setup.env.obs)]
        envs, steps = np.arange(rows, dtype=np.int32), np.ones(rows, np.int32)

        def actor_work(device: jax.Device, env_id: np.ndarray) -> Work:
            published, env_id = on_device(self._state.published, device), env_id[:rows]
            states = EnvStates(setup.algorithm.initial_state(plan.envs_per_actor), device)
            act_here = partial(act, jax.device_put(self._keys.act, device))
            frame_stack = DeviceFrameStack(setup.env, plan.envs_per_actor, device)

            def call() -> jax.Array:
                seen, integers = frame_stack(obs, envs, steps, steps == 0, env_id, steps)
                packed, state = act_here(published, seen, states.rows(envs), integers)
                states.write(envs, state, np.ones(rows, np.bool_))
                return packed

            def work() -> int:
                jax.device_get([call() for _ in range(plan.env_batch // rows)])
                return plan.env_batch

            return work

        actors = zip(setup.actor_devices, env_ids_of_actors(plan, process=0), strict=True)
        works = [actor_work(*actor) for actor in actors]
        for work in works:
            work()  # compiles, once per device
        return [steps_per_second(works, seconds) for _ in range(repeats)]

    def learn(self, seconds: float, repeats: int) -> list[float]:
        """Steps per second of each update. All start from the first params, so that random rewards lead
        nowhere. If an update is long, one is enough."""
        seconds_spent: list[float] = []
        self._update(0)  # compiles
        while sum(seconds_spent) < repeats * seconds:
            seconds_spent.append(self._update(len(seconds_spent)))
        return [self._plan.batch_size / s for s in seconds_spent]

    def copy(self, seconds: float, repeats: int) -> list[float]:
        """Steps per second of rollouts that go from the host to the learners, one thread per actor."""

        def work() -> int:
            jax.block_until_ready(self._shard())
            return self._plan.num_steps * self._plan.envs_per_actor

        return [steps_per_second([work] * self._plan.actors, seconds) for _ in range(repeats)]

    def _update(self, number: int) -> float:
        """Seconds of one update, from rollouts that are on the learners already; the update consumes them."""
        rollouts = jax.block_until_ready([self._shard() for _ in range(self._plan.actors)])
        start = time.perf_counter()
        self._learner.update(self._state, rollouts, self._env_id, number, self._state.extra)
        return time.perf_counter() - start

    def _shard(self) -> Rollout:
        states = (self._env_states, self._env_states)
        return self._rollout.shard_over_envs(self._setup.mesh, self._setup.learner_devices, *states)


def random_rollout(
    plan: BatchPlan, env: EnvSpec, like: Decision, with_returns: bool = False, stateful: bool = False
) -> RolloutBuffer:
    rng = np.random.default_rng(0)
    buffer = RolloutBuffer(plan, env, like, with_returns=with_returns, stateful=stateful)
    envs, specs = np.arange(plan.envs_per_actor), jax.tree.leaves(env.obs)
    never = np.zeros(len(envs), np.bool_)
    depth = max(spec.stack for spec in specs)
    buffer.write_before(envs, [spec.random(rng, len(envs))[:, : spec.stack - 1] for spec in specs])
    for t in range(plan.num_steps + 1):
        rows = dict(obs=[spec.random(rng, len(envs), only_new=True) for spec in specs])
        if depth > 1:
            rows |= dict(since_reset=[np.full_like(envs, depth - 1)])
        if stateful:
            rows |= dict(episode_start=[rng.random(len(envs)) < 0.01])
        buffer.write(np.full_like(envs, t), envs, **rows)
    for t in range(plan.num_steps):
        buffer.write(
            np.full_like(envs, t),
            envs,
            action=[env.action.random(rng, len(envs))],
            record=[np.zeros((len(envs), *x.shape), x.dtype) for x in jax.tree.leaves(like.record)],
            reward=[rng.integers(2, size=len(envs))],
            terminated=[rng.random(len(envs)) < 0.01],
            truncated=[never],
            valid=[~never],
            **(dict(discounted_return=[rng.random(len(envs))]) if with_returns else {}),
        )
    return buffer
