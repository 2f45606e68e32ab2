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
from contextlib import ExitStack
from functools import partial
from importlib.metadata import version
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
from cleanba.sebulba.networks import resolve_network
from cleanba.sebulba.rollout import env_ids_of_actors, env_ids_of_columns, put_on_learners
from cleanba.sebulba.terminal import Terminal, clock
from cleanba.sebulba.topology import Topology

MakeAlgorithm = Callable[[Any, EnvSpec, BatchPlan], Algorithm]
JOIN_SECONDS = 1.0  # for all threads to notice the end; a command does not wait longer for them


class Outcome(NamedTuple):
    run_dir: Path
    params: Params  # on the host
    last_row: Row


class Interrupted(KeyboardInterrupt):
    def __init__(self, run_dir: Path):
        super().__init__(f"the run in {run_dir} was interrupted")
        self.run_dir = run_dir


# ------------------------------------------------------------------------------------------------ threads


class Learned(NamedTuple):
    """What the learner tells the main thread about one update."""

    update: int  # from 0
    params: Params  # a copy
    collected: list[Collected]  # their rollouts are used up
    losses: dict[str, float]
    seconds: dict[str, float]  # where the time went
    finished: float  # time.perf_counter()


class Wires(NamedTuple):
    """The channels of a run: params to each actor, a rollout from each actor, news to the main thread.

    The params channels hold `1 + lag` versions and start full, so actors use versions 0, 1, 2, … at lag 0 and
    0, 0, 1, 2, … at lag 1."""

    params: list[Channel[Params]]
    rollouts: list[Channel[Collected]]
    learned: Channel[Learned]

    @staticmethod
    def create(actors: int, lag: int) -> "Wires":
        return Wires(
            params=[Channel(1 + lag) for _ in range(actors)],
            rollouts=[Channel(1) for _ in range(actors)],
            learned=Channel(2),
        )

    def close(self, error: BaseException | None = None) -> None:
        """Every thread ends; the main thread gets the error."""
        self.learned.close(error)
        for channel in (*self.params, *self.rollouts):
            channel.close()


class LearnerLoop(NamedTuple):
    """All that the learner's thread needs."""

    learner: Learner
    init_key: Array
    env_id: Array  # i32 [N], of the batch's columns
    plan: BatchPlan
    lag: int
    actor_devices: list[jax.Device]  # one per actor
    wires: Wires

    def run(self) -> None:
        timer = Timer()
        state = self.learner.init(self.init_key)
        for _ in range(1 + self.lag):
            self.publish(state.params)
        for update in range(self.plan.updates):
            with timer("waiting"):
                collected = [channel.get() for channel in self.wires.rollouts]
            self.wires.learned.check_open()  # rollouts that came before a failure are not worth an update
            with timer("learning"):
                rollouts = [c.rollout for c in collected]
                state, losses = self.learner.update(state, rollouts, self.env_id, update)
            with timer("publishing"):
                copy = self.publish(state.params)
            seconds = timer.take()
            self.wires.learned.put(Learned(update, copy, collected, losses, seconds, time.perf_counter()))
        self.wires.learned.close()

    def publish(self, params: Params) -> Params:
        copies = {device: copy_to(params, device) for device in self.actor_devices}
        for channel, device in zip(self.wires.params, self.actor_devices, strict=True):
            channel.put(copies[device])
        return copies[self.actor_devices[0]]


def start_thread(name: str, work: Callable[[], None], wires: Wires) -> threading.Thread:
    """An exception in `work` ends the run."""

    def guarded() -> None:
        try:
            work()
        except ChannelClosed:
            pass  # the run ends for a reason that is known elsewhere
        except BaseException as error:
            wires.close(error)

    thread = threading.Thread(target=guarded, name=name, daemon=True)
    thread.start()
    return thread


def join(threads: list[threading.Thread]) -> None:
    deadline = time.perf_counter() + JOIN_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.perf_counter()))


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
    write_args(run_dir, args, topology, plan, env)

    lag = 1 if args.concurrency else 0
    wires = Wires.create(plan.actors, lag)
    progress = np.zeros(plan.actors, np.int64)  # steps that each actor has done
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
            params=wires.params[index],
            rollouts=wires.rollouts[index],
            progress=progress[index : index + 1],
        )
        for index, env_id in enumerate(env_ids_of_actors(plan, process=0))
    ]
    loop = LearnerLoop(
        learner=Learner(algorithm, plan, mesh, minibatch_key),
        init_key=init_key,
        env_id=put_on_learners(env_ids_of_columns(plan, process=0), PER_LEARNER, mesh, learner_devices),
        plan=plan,
        lag=lag,
        actor_devices=[d for d in topology.actor_devices() for _ in range(args.num_actor_threads)],
        wires=wires,
    )

    title = f"{run_dir.name}  ·  {topology} on {learner_devices[0].device_kind}"
    with ExitStack() as cleanup:  # in reverse: end all threads, close the writers, wait for the threads
        threads: list[threading.Thread] = []
        cleanup.callback(join, threads)
        writers: list[Writer] = [
            JsonLines(run_dir / "metrics.jsonl"),
            TensorBoard(run_dir, args.log_frequency, plan.updates, vars(args)),
        ]
        if console:
            writers.append(Terminal(title, plan, args.log_frequency, progress, console))
        for writer in writers:
            cleanup.callback(writer.close)
        cleanup.callback(wires.close)
        rows = Rows(plan, algorithm.learning_rate)
        threads.append(start_thread("learner", loop.run, wires))
        threads += [start_thread(f"actor-{index}", actor.run, wires) for index, actor in enumerate(actors)]
        try:
            for news in wires.learned:
                row = rows.make(news)
                for writer in writers:
                    writer.write(row)
        except KeyboardInterrupt:
            raise Interrupted(run_dir) from None
    return Outcome(run_dir, jax.device_get(news.params), row)


def make_envs(args: RunArgs, plan: BatchPlan, env_id: np.ndarray) -> Envs:
    seeds = env_seeds(args.seed, env_id.tolist())
    return Envs(args.env_id, env_options(args), seeds, env_threads(args, plan.actors))


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
    now = int(time.time())
    for second in range(now, now + 60):  # runs that start in the same second take the next free one
        name = f"{args.env_id}__{args.exp_name}__{args.seed}__{second}".replace("/", "-")
        run_dir = Path(args.runs_dir) / name
        try:
            run_dir.parent.mkdir(parents=True, exist_ok=True)
            run_dir.mkdir()
            return run_dir
        except FileExistsError:
            if not run_dir.parent.is_dir():
                raise UsageError(f"--runs-dir {args.runs_dir} is not a folder; give another") from None
        except OSError as error:
            why = error.strerror
            raise UsageError(f"--runs-dir {args.runs_dir} or {name} cannot be written ({why})") from error
    raise UsageError(f"--runs-dir {args.runs_dir} already holds sixty runs that started just now; wait")


def write_args(run_dir: Path, args: RunArgs, topology: Topology, plan: BatchPlan, env: EnvSpec) -> None:
    """args.json: the flags, what was resolved from them, and where the run runs."""
    record = {
        "args": vars(args),
        "layout": str(topology),
        "plan": plan._asdict(),
        "network": resolve_network(args, env),
        "env_options": env_options(args),
        "machine": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("jax", "jaxlib", "flax", "optax", "envpool")},
            "actor_devices": topology.actor_devices()[0].device_kind,
            "learner_devices": topology.learner_devices()[0].device_kind,
            "cores": len(os.sched_getaffinity(0)),
        },
    }
    (run_dir / "args.json").write_text(json.dumps(record, indent=2) + "\n")


# -------------------------------------------------------------------------------------------- the command


def run_command(
    default: RunArgs,
    make_algorithm: MakeAlgorithm,
    *,
    description: str,
    argv: list[str] | None = None,
    prog: str | None = None,
) -> None:
    """Parse, train, and leave: 0 when trained, 2 for bad input, 130 for Ctrl-C, 1 for any other failure."""
    console = Console()
    try:
        args = parse_args(default, description=description, argv=argv, prog=prog)
        outcome = train(args, make_algorithm, console)
        draw_curve(outcome.run_dir)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except Interrupted as interrupted:
        print(f"interrupted; everything logged so far is in {interrupted.run_dir}", file=sys.stderr)
        leave_now(130)
    except KeyboardInterrupt:
        leave_now(130)
    except Exception:
        traceback.print_exc()
        leave_now(1)
    console.print(summary(outcome), soft_wrap=True, highlight=False, markup=False)


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
