"""How a typed program uses the package: `make lint` checks it with mypy, a test runs it."""

from pathlib import Path
from typing import Any, assert_type

import numpy as np

import cleanba


def stop_after_two(row: dict[str, Any]) -> bool:
    return row["update"] >= 2


def main(runs: Path) -> float:
    flags: dict[str, Any] = dict(env_id="CartPole-v1", runs_dir=runs, num_steps=16, local_num_envs=4)
    try:
        training = cleanba.train("ppo", on_update=stop_after_two, progress=False, **flags)
    except cleanba.UsageError as error:
        raise SystemExit(str(error)) from error
    assert_type(training, cleanba.Training)
    assert_type(training.rows, dict[str, np.ndarray])
    policy = cleanba.load(training.policy.save(training.folder / "two.cleanrl_model"))
    assert_type(policy, cleanba.Policy)
    action, state = policy(np.zeros(4, np.float32), greedy=True)
    assert_type(state, cleanba.PolicyState)
    action, state = policy(np.zeros(4, np.float32), state)
    (run,) = cleanba.runs(runs)
    assert_type(run, cleanba.Run)
    assert run.status == "stopped" and run.step == training.rows["global_step"][-1] and action in (0, 1)
    evaluation = cleanba.evaluate(policy, episodes=2)
    assert_type(evaluation, cleanba.Evaluation)
    return float(evaluation.returns.mean())
