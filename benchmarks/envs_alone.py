"""How fast vector environments alone are, with random actions: ours, and those of others.

    python benchmarks/envs_alone.py ENVS... --env-id CartPole-v1 [--num-envs 16] [--seconds 5] [--repeats 3]

ENVS are `workers` (Cleanba's worker processes on Gymnasium's environments), `envpool` (Cleanba's other
backend), `async` (Gymnasium's AsyncVectorEnv) and `subproc` (Stable-Baselines3's SubprocVecEnv), and take
turns. Atari of Gymnasium (`ale_py:ALE/Pong-v5`, `pip install ale-py`) gives the last four grey images of
84x84, by our own options or by Gymnasium's wrappers. EnvPool knows the game as `Pong-v5`, and takes the
larger of two frames and clips rewards besides. The last line of the output is a JSON object with the median
rate of each.
"""

import argparse
import json
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

WARMUP_SECONDS = 1.0
SIZE, FRAMES = 84, 4
GRAY: dict[str, Any] = {"obs_type": "grayscale"}  # the emulator's own grey, in both


def is_atari(env_id: str) -> bool:
    return "ALE/" in env_id


def our_options(env_id: str) -> dict[str, Any]:
    """What --env-options are for the same images."""
    return GRAY | {"resize": [SIZE, SIZE], "frame_stack": FRAMES} if is_atari(env_id) else {}


def make_env(env_id: str) -> Any:
    import gymnasium

    if not is_atari(env_id):
        return gymnasium.make(env_id)
    env = gymnasium.make(env_id, **GRAY)
    env = gymnasium.wrappers.ResizeObservation(env, (SIZE, SIZE))
    return gymnasium.wrappers.FrameStackObservation(env, FRAMES)


def ours(args: argparse.Namespace, backend: Any, env_id: str, options: dict[str, Any]) -> Any:
    import numpy as np

    from cleanba.cleanba_ppo import Args
    from cleanba.envs.factory import env_spec, make_envs

    env = env_spec(Args(env_id=env_id, env_backend=backend, env_options=json.dumps(options)))
    batch = args.batch or args.num_envs
    envs = make_envs(env, range(args.num_envs), args.workers, batch=batch)
    rng = np.random.default_rng(0)
    actions = [env.action.random(rng, batch) for _ in range(100)]
    envs.reset()

    def step(number: int) -> int:
        came = envs.receive()
        envs.send(actions[number % 100], came.env)
        return len(came.env)

    return envs, step


def workers(args: argparse.Namespace) -> Any:
    return ours(args, "gymnasium", args.env_id, our_options(args.env_id))


def envpool(args: argparse.Namespace) -> Any:
    return ours(args, "envpool", args.env_id.split("/")[-1], {})


def gymnasium_async(args: argparse.Namespace) -> Any:
    import gymnasium

    envs = gymnasium.vector.AsyncVectorEnv([partial(make_env, args.env_id)] * args.num_envs)
    envs.reset(seed=0)
    actions = [envs.action_space.sample() for _ in range(100)]
    return envs, partial(step_all, envs, actions)


def sb3_subproc(args: argparse.Namespace) -> Any:
    import numpy as np
    from stable_baselines3.common.vec_env import SubprocVecEnv

    make = partial(make_env, args.env_id)
    envs = SubprocVecEnv([make] * args.num_envs, start_method="fork")  # starts soonest, steps the same
    envs.reset()
    actions = [np.array([envs.action_space.sample() for _ in range(args.num_envs)]) for _ in range(100)]
    return envs, partial(step_all, envs, actions)


def step_all(envs: Any, actions: list[Any], number: int) -> int:
    envs.step(actions[number % 100])
    return envs.num_envs


ENVS: dict[str, Callable[[argparse.Namespace], Any]] = {
    "workers": workers,
    "envpool": envpool,
    "async": gymnasium_async,
    "subproc": sb3_subproc,
}


def steps_per_second(name: str, args: argparse.Namespace) -> float:
    envs, step = ENVS[name](args)
    with closing(envs):
        number, start = 0, time.perf_counter()
        while time.perf_counter() - start < WARMUP_SECONDS:
            step(number := number + 1)
        steps, start = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - start) < args.seconds:
            steps += step(number := number + 1)
    return steps / elapsed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("envs", nargs="+", choices=ENVS)
    parser.add_argument("--env-id", required=True)
    parser.add_argument("--num-envs", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2, help="worker processes or threads of ours")
    parser.add_argument("--batch", type=int, help="how many ours receive at a time; default: all, in order")
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--out", type=Path, help="also write the rates to this JSON file")
    args = parser.parse_args()
    if args.env_id.startswith("ale_py:"):
        import_module("ale_py")  # registers the ids; before processes are forked
    rates: dict[str, list[float]] = {name: [] for name in args.envs}
    for _ in range(args.repeats):
        for name in args.envs:
            rates[name].append(steps_per_second(name, args))
            print(f"{args.env_id} {name}: {rates[name][-1]:.0f} steps/s", flush=True)
            if args.out:  # after each, in case the time runs out
                flags = {flag: str(value) for flag, value in vars(args).items()}
                args.out.write_text(json.dumps({"flags": flags, "rates": rates}, indent=2) + "\n")
    print(json.dumps({name: median(x) for name, x in rates.items()}))


if __name__ == "__main__":
    main()
