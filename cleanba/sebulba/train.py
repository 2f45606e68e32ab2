"""Where everything meets: threads, channels, the loop, and what the command does with the outcome."""

import json
import os
import platform
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import jax
import numpy as np
from jax import Array
from rich.console import Console

from cleanba.sebulba.actor import Actor, Collected
from cleanba.sebulba.algorithm import Algorithm, Params
from cleanba.sebulba.args import BatchPlan, RunArgs, UsageError, parse_args
from cleanba.sebulba.channel import Channel, ChannelClosed
from cleanba.sebulba.envs import Envs, EnvSpec, Episode, env_options, env_seeds, env_spec, env_threads
from cleanba.sebulba.learner import PER_LEARNER, Learner, copy_to
from cleanba.sebulba.metrics import (
    RECENT_GAMES,
    JsonLines,
    Row,
    TensorBoard,
    Timer,
    Writer,
    data_digest,
    params_digest,
)
from cleanba.sebulba.rollout import env_ids_of_actors, env_ids_of_columns, put_on_learners
from cleanba.sebulba.terminal import Terminal, clock
from cleanba.sebulba.topology import Topology

MakeAlgorithm = Callable[[Any, EnvSpec, BatchPlan], Algorithm]
JOIN_SECONDS = 1.0  # for all threads to notice the end; a command does not wait longer for them


class Outcome(NamedTuple):
    run_dir: Path
    params: Params  # on the host
    last_row: Row


# ----------------------------------------------------------------------------------------- the learner's loop


class Learned(NamedTuple):
    """What the learner tells the main thread about one update."""

    update: int  # from 0
    params: Params  # a copy
    collected: list[Collected]  # their rollouts are used up
    losses: dict[str, float]
    seconds: dict[str, float]  # where the time went
    finished: float  # time.perf_counter()


class LearnerLoop(NamedTuple):
    """All that the learner's thread needs. The params channels hold `1 + lag` versions and start full, so the
    actors use versions 0, 1, 2, … at lag 0 and 0, 0, 1, 2, … at lag 1."""

    learner: Learner
    init_key: Array
    env_id: Array  # i32 [N], of the batch's columns
    plan: BatchPlan
    lag: int
    actor_devices: list[jax.Device]  # one per actor
    params: list[Channel[Params]]
    rollouts: list[Channel[Collected]]
    learned: Channel[Learned]

    def run(self) -> None:
        timer = Timer()
        state = self.learner.init(self.init_key)
        for _ in range(1 + self.lag):
            self.publish(state.params)
        for update in range(self.plan.updates):
            with timer("waiting"):
                collected = [channel.get() for channel in self.rollouts]
            with timer("learning"):
                rollouts = [c.rollout for c in collected]
                state, losses = self.learner.update(state, rollouts, self.env_id, update)
            with timer("publishing"):
                copy = self.publish(state.params)
            self.learned.put(Learned(update, copy, collected, losses, timer.take(), time.perf_counter()))
        self.learned.close()

    def publish(self, params: Params) -> Params:
        copies = {device: copy_to(params, device) for device in self.actor_devices}
        for channel, device in zip(self.params, self.actor_devices, strict=True):
            channel.put(copies[device])
        return copies[self.actor_devices[0]]


# ------------------------------------------------------------------------------------------------ one run


def train(args: RunArgs, make_algorithm: MakeAlgorithm, console: Console | None = None) -> Outcome:
    """Train to the end. The calling thread writes and shows what the others do, so it can always be
    interrupted; an exception in any of them is raised here."""
    topology = Topology(args.actor_device_ids, args.learner_device_ids).check_ids()
    plan = BatchPlan.create(args, topology)
    env = env_spec(args)
    algorithm = make_algorithm(args, env, plan)
    topology.check_devices_exist()
    run_dir = make_run_dir(args)
    write_args(run_dir, args, topology, plan)

    lag = 1 if args.concurrency else 0
    params_channels: list[Channel[Params]] = [Channel(1 + lag) for _ in range(plan.actors)]
    rollout_channels: list[Channel[Collected]] = [Channel(1) for _ in range(plan.actors)]
    learned: Channel[Learned] = Channel(2)
    progress = np.zeros(plan.actors, np.int64)

    init_key, act_key, minibatch_key = jax.random.split(jax.random.key(args.seed), 3)
    mesh, learner_devices = topology.learner_mesh(), topology.learner_devices()
    act = jax.jit(partial(algorithm.act, act_key))
    actors = [
        Actor(
            act=act,
            envs=make_envs(args, plan, env_id),
            env=env,
            env_id=env_id,
            plan=plan,
            mesh=mesh,
            learner_devices=learner_devices,
            params=params_channel,
            rollouts=rollout_channel,
            progress=progress[index : index + 1],
        )
        for index, (env_id, params_channel, rollout_channel) in enumerate(
            zip(env_ids_of_actors(plan, process=0), params_channels, rollout_channels, strict=True)
        )
    ]
    loop = LearnerLoop(
        learner=Learner(algorithm, plan, mesh, minibatch_key),
        init_key=init_key,
        env_id=put_on_learners(env_ids_of_columns(plan, process=0), PER_LEARNER, mesh, learner_devices),
        plan=plan,
        lag=lag,
        actor_devices=[d for d in topology.actor_devices() for _ in range(args.num_actor_threads)],
        params=params_channels,
        rollouts=rollout_channels,
        learned=learned,
    )

    title = f"{run_dir.name}  ·  {topology} on {learner_devices[0].device_kind}"
    writers: list[Writer] = [
        JsonLines(run_dir / "metrics.jsonl"),
        TensorBoard(run_dir, args.log_frequency, plan.updates, vars(args)),
        Terminal(title, plan, args.log_frequency, progress, console or Console(quiet=True)),
    ]
    rows = Rows(plan, algorithm.learning_rate)
    channels: list[Channel[Any]] = [*params_channels, *rollout_channels]
    threads = [start_thread("learner", loop.run, learned, channels)]
    threads += [start_thread(f"actor-{i}", actor.run, learned, channels) for i, actor in enumerate(actors)]
    try:
        for news in learned:
            row = rows.make(news)
            for writer in writers:
                writer.write(row)
    finally:
        for channel in (*channels, learned):
            channel.close()
        for writer in writers:
            writer.close()
        deadline = time.perf_counter() + JOIN_SECONDS
        for thread in threads:
            thread.join(max(0.0, deadline - time.perf_counter()))
    return Outcome(run_dir, jax.device_get(news.params), row)


def start_thread(
    name: str, work: Callable[[], None], learned: Channel[Learned], channels: list[Channel[Any]]
) -> threading.Thread:
    """An exception in `work` goes to the main thread, through `learned`, and ends all others."""

    def guarded() -> None:
        try:
            work()
        except ChannelClosed:
            pass  # the run ends for a reason that is known elsewhere
        except BaseException as error:
            learned.close(error)
            for channel in channels:
                channel.close()

    thread = threading.Thread(target=guarded, name=name, daemon=True)
    thread.start()
    return thread


def make_envs(args: RunArgs, plan: BatchPlan, env_id: np.ndarray) -> Envs:
    seeds = env_seeds(args.seed, env_id.tolist())
    return Envs(args.env_id, env_options(args), seeds, env_threads(args, plan.actors))


def linear_schedule(args: RunArgs, plan: BatchPlan) -> Callable[[int], float]:
    """The learning rate as a function of the update's index: counts of optimizer steps would shift it when
    epochs are skipped."""

    def learning_rate(update: int) -> float:
        return args.learning_rate * (1 - update / plan.updates if args.anneal_lr else 1.0)

    return learning_rate


# ------------------------------------------------------------------------------------- what a run writes


class Rows:
    """Makes the row of each update. Steps per second leave the first update, with its compilation, out."""

    def __init__(self, plan: BatchPlan, learning_rate: Callable[[int], float]):
        self._plan = plan
        self._learning_rate = learning_rate
        self._started = self._previous = time.perf_counter()
        self._first: float | None = None
        self._recent: deque[Episode] = deque(maxlen=RECENT_GAMES)
        self._games = 0

    def make(self, news: Learned) -> Row:
        batch = self._plan.batch_size
        seconds = news.finished - self._previous
        self._previous = news.finished
        row: Row = {
            "update": news.update + 1,
            "global_step": (news.update + 1) * batch,
            "seconds": news.finished - self._started,
            "charts/learning_rate": self._learning_rate(news.update),
            "charts/SPS_update": batch / seconds,
        }
        if self._first is None:
            self._first = news.finished
        else:
            row["charts/SPS"] = news.update * batch / (news.finished - self._first)
        finished = [game for c in news.collected for game in c.episodes]
        self._recent.extend(finished)
        self._games += len(finished)
        if self._recent:
            row["charts/avg_episodic_return"] = float(np.mean([g.episodic_return for g in self._recent]))
            row["charts/avg_episodic_length"] = float(np.mean([g.length for g in self._recent]))
        row |= {f"losses/{name}": value for name, value in news.losses.items()}
        row["stats/games"] = self._games
        row["stats/update_seconds"] = seconds
        row |= {f"stats/learner_{name}_seconds": value for name, value in news.seconds.items()}
        for name in news.collected[0].seconds:
            row[f"stats/actor_{name}_seconds"] = float(np.mean([c.seconds[name] for c in news.collected]))
        row["params_digest"] = params_digest(jax.device_get(news.params))
        row["data_digest"] = data_digest((c.env_id, c.transitions) for c in news.collected)
        return row


def make_run_dir(args: RunArgs) -> Path:
    name = f"{args.env_id}__{args.exp_name}__{args.seed}__{int(time.time())}".replace("/", "-")
    run_dir = Path(args.runs_dir) / name
    while run_dir.exists():  # two runs started in the same second
        run_dir = run_dir.with_name(f"{name[: name.rindex('__')]}__{int(run_dir.name.rsplit('__')[-1]) + 1}")
    try:
        run_dir.mkdir(parents=True)
        (run_dir / "metrics.jsonl").touch()
    except OSError as error:
        raise UsageError(
            f"--runs-dir {args.runs_dir} cannot be written ({error.strerror}); give another"
        ) from error
    return run_dir


def write_args(run_dir: Path, args: RunArgs, topology: Topology, plan: BatchPlan) -> None:
    """args.json: the flags, what was resolved from them, and where the run runs."""
    record = {
        "args": vars(args),
        "layout": str(topology),
        "plan": plan._asdict(),
        "machine": {
            "python": platform.python_version(),
            "jax": jax.__version__,
            "device_kind": jax.local_devices()[0].device_kind,
            "cores": len(os.sched_getaffinity(0)),
        },
    }
    (run_dir / "args.json").write_text(json.dumps(record, indent=2) + "\n")


# -------------------------------------------------------------------------------------------- the command


def run_command(
    default: RunArgs, make_algorithm: MakeAlgorithm, *, description: str, argv: list[str] | None = None
) -> None:
    """Parse, train, and leave: 0 when trained, 2 for bad input, 130 for Ctrl-C, 1 for any other failure."""
    console = Console()
    try:
        args = parse_args(default, prog=default.exp_name, description=description, argv=argv)
        outcome = train(args, make_algorithm, console)
        draw_curve(outcome.run_dir)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted; everything logged so far is in the run folder", file=sys.stderr)
        leave_now(130)
    except Exception:
        traceback.print_exc()
        leave_now(1)
    console.print(summary(outcome), soft_wrap=True, highlight=False)


def leave_now(code: int) -> NoReturn:
    """Without waiting for threads: one may be inside a long device program."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def draw_curve(run_dir: Path) -> None:
    """learning_curve.png, where matplotlib is installed (the extra `plot`)."""
    try:
        from cleanrl_utils.plot_curve import plot_runs
    except ModuleNotFoundError:
        return
    plot_runs([run_dir], run_dir / "learning_curve.png")


def summary(outcome: Outcome) -> str:
    row = outcome.last_row
    speed = row.get("charts/SPS", row["charts/SPS_update"])
    games = min(row["stats/games"], RECENT_GAMES)
    returns = (
        f"return {row['charts/avg_episodic_return']:.2f} (last {games} games)"
        if games
        else "no game finished"
    )
    return (
        f"done: {row['global_step']:,} steps in {clock(row['seconds'])}, {speed:,.0f} steps/s, {returns}\n"
        f"everything is in {outcome.run_dir}"
    )
