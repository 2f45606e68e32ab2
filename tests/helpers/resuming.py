"""Where a command with given flags would resume, without training."""

import json

from cleanba import cleanba_ppo
from cleanba.config.flags import given_flags, with_tuples
from cleanba.records.resume import choose_start
from cleanba.training.setup import lay_out, saved_like
from helpers.runs import read_args


def saved_by_ppo(args):
    """Shapes and dtypes that a PPO run with these arguments saves."""
    _, plan, env = lay_out(args, 1)
    return saved_like(cleanba_ppo.make_algorithm(args, env, plan))


def start_of(args, given, algorithm="ppo"):
    start = choose_start(args, given, 1, algorithm, saved_by_ppo)
    if start.previous:
        start.previous.metrics.close()
    return start


def resume(run_dir, flags="", algorithm=cleanba_ppo):
    """`--resume RUN_DIR` and `flags`, whose values are JSON."""
    names, values = flags.split()[::2], [json.loads(value) for value in flags.split()[1::2]]
    names = [name[2:].replace("-", "_") for name in names]
    typed = with_tuples(dict(zip(names, values, strict=True)))
    return start_of(algorithm.Args(resume=str(run_dir), **typed), given_flags(flags.split()))


def resume_auto(run_dir, algorithm="ppo", **changes):
    """`--resume auto` with the flags of this run, changed."""
    flags = with_tuples(read_args(run_dir)["args"]) | changes
    args = cleanba_ppo.Args(**flags | dict(resume="auto", runs_dir=str(run_dir.parent)))
    return start_of(args, set(), algorithm)
