"""What limits the speed of a run, judged by its measurements, and what to change."""

from typing import NamedTuple

from cleanba.config.flags import RunArgs, flag

NEAR = 0.9  # share of a ceiling above which measurements cannot tell the two apart
BUSY = 0.9  # share of the time above which a learner counts as always busy


class RunSpeed(NamedTuple):
    """Steps per second of the parts of a run, and how its threads spend the time of an update."""

    ceiling: float  # environments alone, stepped in the fastest way
    environments: float  # environments alone, stepped as in the run
    inference: float  # alone
    learning: float  # alone
    training: float
    actor: dict[str, float]  # environment, inference, handover, waiting: shares of the time
    learner: dict[str, float]  # learning, waiting, publishing
    platform: str  # of the devices

    def actor_time(self) -> dict[str, float]:
        """Shares that add up to 1. Inference beyond what it takes alone is queueing for the device."""
        total = max(1.0, sum(self.actor.values()))  # medians may add up to more than 1
        share = {name: part / total for name, part in self.actor.items()}
        alone = min(share["inference"], self.training / self.inference)
        return {
            "environment": share["environment"],
            "inference": alone,
            "queueing": share["inference"] - alone,
            "handover": share["handover"],
            "waiting": share["waiting"],
            "python": 1 - sum(share.values()),
        }


def bottleneck(speed: RunSpeed, args: RunArgs, *, own_network: bool = False) -> str:
    """One sentence. In `args` every default is resolved. An algorithm with a network of its own has no flags
    for it."""
    reached = speed.training / speed.ceiling
    if reached >= NEAR:
        return f"environment-bound, {percent(reached)}: more cores help, nothing else does"
    if speed.platform == "cpu":
        return _cpu_bottleneck(speed, args, own_network)
    times = speed.actor_time()
    in_environments = times.pop("environment")
    then = _actor_bottleneck(speed, args, times, in_environments, own_network)
    well_stepped = speed.environments >= NEAR * speed.ceiling
    if in_environments > 0.5 and well_stepped and not _learner_always_busy(speed, args):
        return f"mostly environment-bound, {percent(reached)}: more cores help. Then: {then}"
    return then


def _actor_bottleneck(
    speed: RunSpeed, args: RunArgs, times: dict[str, float], in_environments: float, own_network: bool
) -> str:
    """The largest of the actors' `times`, which leave out what they spend in environments."""
    worst = max(times, key=lambda name: times[name])
    share = percent(times[worst])
    if _learner_always_busy(speed, args) or (args.concurrency and worst == "waiting"):
        busy, waiting = percent(speed.learner["learning"]), percent(times["waiting"])
        bfloat16 = ", `--compute-dtype bfloat16`" * (args.compute_dtype == "float32" and not own_network)
        return (
            f"learner-bound: the learner is busy {busy} of the time, actors wait for it {waiting} of the "
            f"time: a larger {_current(args, 'gradient_chunk')}{bfloat16} or more `--learner-device-ids` help"
        )
    if speed.environments < NEAR * speed.ceiling and in_environments > times[worst]:
        flags = "`--env-stepping`, `--num-actor-threads` and `--env-threads`"
        reached = percent(speed.environments / speed.ceiling)
        return f"environments run at {reached} of their ceiling: set {flags} as in the first row"
    shared = set(args.actor_device_ids) & set(args.learner_device_ids)
    if worst == "queueing" and shared and args.concurrency:
        learning = f"actors wait {share} of the time for the {speed.platform.upper()}, which is learning"
        return f"{learning}: lower {_current(args, 'gradient_chunk')}"
    return {
        "waiting": f"acting and learning take turns, and actors wait for the learner {share} of the time: "
        "`--concurrency` lets them overlap, at policy lag 1",
        "queueing": f"policy calls spend {share} of the actors' time waiting for cores and Python's lock: "
        f"a larger {_current(args, 'inference_batch')} needs fewer calls",
        "inference": f"inference takes {share} of the actors' time: a larger "
        f"{_current(args, 'inference_batch')} is cheaper, more {_current(args, 'num_actor_threads')} with "
        "fewer environments each hide it",
        "handover": f"copies to the learners take {share} of the actors' time: more "
        f"{_current(args, 'num_actor_threads')} with fewer environments each hide them",
        "python": f"Python takes {share} of the actors' time: more {_current(args, 'local_num_envs')} do "
        "more per call",
    }[worst]


def _learner_always_busy(speed: RunSpeed, args: RunArgs) -> bool:
    """Never at lag 0, where acting and learning take turns."""
    return args.concurrency and speed.learner["learning"] >= BUSY


def percent(share: float) -> str:
    return f"{share:,.0%}".replace("%", " %")


def percents(shares: dict[str, float]) -> str:
    return ", ".join(f"{name} {percent(share)}" for name, share in shares.items())


def _cpu_bottleneck(speed: RunSpeed, args: RunArgs, own_network: bool) -> str:
    """The same cores step, act and learn, so their times add up. The rest is lost to sharing the cores or, if
    the learner has little to do, to Python."""
    alone = {
        "learning": speed.training / speed.learning,
        "inference": speed.training / speed.inference,
        "stepping environments": speed.training / speed.environments,
    }
    rest = 1 - sum(alone.values())
    shares = percents(alone)
    if rest > max(alone.values()) and speed.learner["learning"] < 0.5:
        more = f"more {_current(args, 'local_num_envs')} do more per call"
        return f"bound by Python and waiting, {percent(rest)} of the time ({shares}): {more}"
    advice = {
        "learning": f"a GPU or more cores help, or a smaller {'network' if own_network else '`--network`'}",
        "inference": f"{_larger_calls(args)} (larger batches) or a GPU help",
        "stepping environments": "more cores help",
    }[max(alone, key=lambda name: alone[name])]
    return f"CPU-bound, as the cores do everything (alone: {shares} of the time): {advice}"


def _larger_calls(args: RunArgs) -> str:
    if args.num_actor_threads == 1:
        return f"more {_current(args, 'local_num_envs')}"
    return f"fewer {_current(args, 'num_actor_threads')} with more environments each"


def _current(args: RunArgs, name: str) -> str:
    return f"`{flag(name)}` (now {getattr(args, name)})"
