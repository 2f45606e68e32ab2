"""What limits the speed of a run, from what was measured of it, and what to change."""

from typing import NamedTuple

from cleanba.sebulba.args import RunArgs, flag

NEAR = 0.9  # of a ceiling: what is above it is there, as far as measurements can say
BUSY = 0.9  # of the time: a learner that learns so much of it has nothing to wait for


class Measured(NamedTuple):
    """Steps per second, and which parts of an update's time its threads spend how."""

    ceiling: float  # of the environments alone, stepped in the best way
    environments: float  # alone, stepped as the run does
    inference: float  # alone
    learning: float  # alone
    training: float
    actor: dict[str, float]  # environment, inference, handover, waiting: shares of the time, means of all
    learner: dict[str, float]  # learning, waiting, publishing
    platform: str  # of the devices

    def time_of_actors(self) -> dict[str, float]:
        """All of it. Inference takes longer than alone where others use the device: that is queueing."""
        total = max(1.0, sum(self.actor.values()))  # medians may add up to more than all
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


def bottleneck(measured: Measured, args: RunArgs) -> str:
    """In a sentence. The `args` have no defaults that are still to be resolved."""
    reached = measured.training / measured.ceiling
    if reached >= NEAR:
        return f"environment-bound, {percent(reached)}: more cores help, nothing else does"
    if measured.platform == "cpu":
        return _of_cores(measured, args)
    times = measured.time_of_actors()
    in_environments = times.pop("environment")
    then = _of_actors(measured, args, times, in_environments)
    well_stepped = measured.environments >= NEAR * measured.ceiling
    if in_environments > 0.5 and well_stepped and not _learns_always(measured, args):
        return f"mostly environment-bound, {percent(reached)}: more cores help. Then: {then}"
    return then


def _of_actors(measured: Measured, args: RunArgs, times: dict[str, float], in_environments: float) -> str:
    """What takes most of their `times`, without what they spend in environments."""
    worst = max(times, key=lambda name: times[name])
    share = percent(times[worst])
    device = measured.platform.upper()
    if _learns_always(measured, args) or (args.concurrency and worst == "waiting"):
        busy, waiting = percent(measured.learner["learning"]), percent(times["waiting"])
        return (
            f"learner-bound: it learns {busy} of the time, actors wait {waiting} for it: "
            f"{_learn_faster(args)} or more `--learner-device-ids` help"
        )
    if measured.environments < NEAR * measured.ceiling and in_environments > times[worst]:
        return (
            f"environments are stepped at {percent(measured.environments / measured.ceiling)} of their "
            "ceiling: step them as in the first row, by `--env-stepping`, `--num-actor-threads` and "
            "`--env-threads`"
        )
    if worst == "waiting":
        return (
            f"acting and learning take turns, and actors wait {share} for the learner: `--concurrency` lets "
            "them overlap, at policy lag 1"
        )
    shared = set(args.actor_device_ids) & set(args.learner_device_ids)
    if worst == "queueing" and shared and args.concurrency:
        return f"actors wait {share} for the {device}, which learns: lower {_now(args, 'gradient_chunk')}"
    if worst == "queueing":
        return (
            f"calls of the policy take {share} of the actors' time longer than alone, because cores and "
            f"Python's lock are taken: a larger {_now(args, 'inference_batch')} needs fewer"
        )
    if worst == "inference":
        return (
            f"inference takes {share} of the actors' time: a larger {_now(args, 'inference_batch')} "
            f"makes it cheaper, more {_now(args, 'num_actor_threads')} with fewer environments each hide it"
        )
    if worst == "handover":
        return (
            f"copies to the learners take {share} of the actors' time: more "
            f"{_now(args, 'num_actor_threads')} with fewer environments each hide them"
        )
    return (
        f"Python takes {share} of the actors' time: with more {_now(args, 'local_num_envs')} a call does more"
    )


def _learns_always(measured: Measured, args: RunArgs) -> bool:
    """At lag 0 acting and learning take turns, and it cannot."""
    return args.concurrency and measured.learner["learning"] >= BUSY


def percent(share: float) -> str:
    return f"{share:,.0%}".replace("%", " %")


def _of_cores(measured: Measured, args: RunArgs) -> str:
    """The same cores step, act and learn, so that their times add up. What is missing is lost to sharing the
    cores or, if the learner has little to do, to Python."""
    alone = {
        "learning": measured.training / measured.learning,
        "inference": measured.training / measured.inference,
        "stepping environments": measured.training / measured.environments,
    }
    rest = 1 - sum(alone.values())
    shares = ", ".join(f"{name} {percent(share)}" for name, share in alone.items())
    if rest > max(alone.values()) and measured.learner["learning"] < 0.5:
        more = "with more `--local-num-envs` a call does more"
        return f"bound by Python and waiting, {percent(rest)} of the time ({shares}): {more}"
    advice = {
        "learning": "a GPU or more cores help, or a smaller `--network`",
        "inference": f"{_larger_calls(args)}, and so larger batches, help, or a GPU",
        "stepping environments": "more cores help",
    }[max(alone, key=lambda name: alone[name])]
    return f"bound by the cores, which do everything (alone: {shares} of the time): {advice}"


def _larger_calls(args: RunArgs) -> str:
    if args.num_actor_threads == 1:
        return f"more {_now(args, 'local_num_envs')}"
    return f"fewer {_now(args, 'num_actor_threads')} with more environments each"


def _learn_faster(args: RunArgs) -> str:
    ways = [f"a larger {_now(args, 'gradient_chunk')}"]
    if args.compute_dtype == "float32":
        ways.append("`--compute-dtype bfloat16`")
    return ", ".join(ways)


def _now(args: RunArgs, name: str) -> str:
    return f"`{flag(name)}` (now {getattr(args, name)})"
