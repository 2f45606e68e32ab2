"""From a setup to threads that are ready to start."""

import threading
from contextlib import ExitStack
from functools import partial

import jax
import numpy as np

from cleanba.distributed.job import Job
from cleanba.envs.factory import env_threads, make_envs
from cleanba.envs.seeding import RESUMED, env_seeds
from cleanba.runtime.devices import on_accelerator
from cleanba.runtime.profiler import Profiler
from cleanba.sebulba.actor import Actor
from cleanba.sebulba.channel import DevicePriority
from cleanba.sebulba.inference import compile_act
from cleanba.sebulba.learner import Learner
from cleanba.sebulba.rollout import env_ids_of_actors
from cleanba.training.setup import Keys, Setup, restore, state_from_model
from cleanba.training.threads import Channels, LearnerLoop, ThreadGroup


def make_threads(setup: Setup, job: Job, cleanup: ExitStack, profiler: Profiler | None = None) -> ThreadGroup:
    args, plan, start = setup.args, setup.plan, setup.start
    lag = 1 if args.concurrency else 0
    channels = Channels.create(plan.actors, lag)
    progress = np.full(plan.actors, start.update * plan.num_steps)
    saved = restore(setup) if start.resumes else None
    key = jax.random.wrap_key_data(saved.key) if saved else jax.random.key(args.seed)
    keys = Keys.split(key)
    priority = DevicePriority()
    actors = make_actors(setup, job.process, keys, channels, progress, priority)
    shares_device = any(actor.priority is priority for actor in actors)
    learner = Learner(
        setup.algorithm, plan, setup.mesh, keys.minibatches, priority if shares_device else None
    )
    state = saved.state if saved else None
    if state is None and args.init_from:
        state = state_from_model(setup, keys.init, job.process)
    loop = LearnerLoop(
        learner=learner,
        init_key=keys.init,
        first_state=learner.place(state) if state else None,
        first_update=start.update,
        env_id=setup.env_id_of_columns(job.process),
        plan=plan,
        lag=lag,
        actor_devices=setup.actor_devices,
        channels=channels,
        profiler=profiler,
    )
    threads = ThreadGroup(
        channels=channels,
        loop=loop,
        actors=actors,
        progress=progress,
        stuck_seconds=args.stuck_seconds,
        key=jax.random.key_data(key),
        threads=[],
        patient=threading.Event(),
        ended=threading.Event(),
    )
    job.when_lost(channels.close)
    cleanup.callback(threads.join)  # the last thing, after all channels and writers are closed
    for actor in actors:
        cleanup.callback(actor.envs.close)  # one that waits for environments waits no longer
    return threads


def make_actors(
    setup: Setup,
    process: int,
    keys: Keys,
    channels: Channels,
    progress: np.ndarray,
    priority: DevicePriority,  # for actors that share an accelerator with the learner while it learns
) -> list[Actor]:
    args, plan, env, start = setup.args, setup.plan, setup.env, setup.start
    act = compile_act(setup.algorithm)
    shared = set(setup.learner_devices) if args.concurrency and on_accelerator() else set()
    background = on_accelerator()
    seed = (args.seed, RESUMED, start.resumes) if start.resumes else args.seed
    return [
        Actor(
            act=partial(act, jax.device_put(keys.act, device)),
            like=setup.like,
            initial_state=setup.algorithm.initial_state(plan.envs_per_actor),
            envs=make_envs(
                env,
                env_seeds(seed, env_id.tolist()),
                env_threads(args, plan.actors, background=background),
                batch=plan.env_batch,
                background=background,
            ),
            env=env,
            env_id=env_id,
            plan=plan,
            device=device,
            mesh=setup.mesh,
            learner_devices=setup.learner_devices,
            params=channels.params[index],
            rollouts=channels.rollouts[index],
            priority=priority if device in shared else DevicePriority(),
            first_update=start.update,
            return_discount=setup.algorithm.return_discount,
            progress=progress[index : index + 1],
        )
        for index, (env_id, device) in enumerate(
            zip(env_ids_of_actors(plan, process), setup.actor_devices, strict=True)
        )
    ]
