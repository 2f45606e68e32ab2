"""Time Sample Factory's APPO on EnvPool's Breakout. against_others.py runs this inside `.venv-sf`.

The last line of the output is a JSON object: the median rate over the iterations, the overall rate, and
checks that no stale samples were dropped (`least_valid`, over the minibatches that Sample Factory reports)
and no epochs skipped. The count of collected samples lags by some seconds, so it may be below the trained.
Flags that this script does not know are passed to Sample Factory and override the configuration below, e.g.
`--serial_mode=True`.
"""

import argparse
import json
import multiprocessing
import tempfile
import time
from functools import partial
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from statistics import median

import envpool
import gymnasium
import torch
from atari import ATARI, add_sizes
from sample_factory.algo.runners.runner import AlgoObserver
from sample_factory.algo.utils.misc import TRAIN_STATS, ExperimentStatus
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.model.actor_critic import create_actor_critic
from sample_factory.train import make_runner

CONFIGURATION = dict(
    env_frameskip=1,  # EnvPool skips frames itself, and we count steps
    batched_sampling=True,
    # The fastest found on two cores with several processes, in runs of 6 s. Steps/s: 1 worker 255 and 263,
    # 1 worker with 2 splits 229, 2 workers 255 (while others used 9 % of the cores; 1 % in other runs). In
    # one process (serial_mode) 316, without async_rl 287 and 317: there the learner has more than one thread.
    num_workers=1,
    num_envs_per_worker=1,  # pools per worker
    worker_num_splits=1,
    use_rnn=False,
    normalize_input=False,  # this and the next three: as in Sample Factory's example for EnvPool's Atari
    normalize_returns=False,
    obs_scale=255.0,
    nonlinearity="relu",
    device="cpu",
)


class Pool(gymnasium.Env):
    """EnvPool as a multi-agent environment, which Sample Factory steps as a batch.

    EnvPool resets one step late: the observation that comes with `done` is the true final one, and the next
    row is a reset that ignored its action. Sample Factory trains on such rows, at the same speed.
    """

    is_multiagent = True

    def __init__(self, env_id: str, num_envs: int, seed: int):
        self.pool = envpool.make(env_id, env_type="gymnasium", num_envs=num_envs, seed=seed, **ATARI)
        self.num_agents = num_envs
        self.observation_space, self.action_space = self.pool.observation_space, self.pool.action_space

    def reset(self, seed=None, options=None):
        return self.pool.reset()[0], {}

    def step(self, actions):
        return *self.pool.step(actions)[:4], {}

    def close(self):
        self.pool.close()


def make_pool(num_envs: int, env_id: str, cfg, env_config, render_mode=None) -> Pool:
    index = env_config.env_id if env_config else 0
    return Pool(env_id, num_envs // (cfg.num_workers * cfg.num_envs_per_worker), seed=cfg.seed + index)


class IterationClock(AlgoObserver):
    """Records the end of every training iteration; ends the run after `seconds`."""

    def __init__(self, seconds: float, warmup: int = 3, min_iterations: int = 3):
        self.seconds, self.warmup, self.min_iterations = seconds, warmup, min_iterations
        self.marks: list[tuple[float, int]] = []  # time, and steps trained on so far
        self.lag = 0  # largest reported number of optimizer steps between acting and learning
        self.valid = 1.0  # smallest share of a minibatch that was not too stale to train on

    def on_init(self, runner):
        # register_policy_msg_handler() would replace the list
        runner.policy_msg_handlers[TRAIN_STATS].append(self.on_train_stats)

    def on_train_stats(self, runner, message, policy_id):
        stats = message[TRAIN_STATS]
        self.lag = max(self.lag, stats["version_diff_max"])
        self.valid = min(self.valid, stats["valids_fraction"])

    def on_training_step(self, runner, training_iteration_since_resume):
        self.marks.append((time.perf_counter(), runner.env_steps[0]))
        measured = self.measured()
        if len(measured) > self.min_iterations and measured[-1][0] - measured[0][0] >= self.seconds:
            runner.cfg.train_for_env_steps = 0

    def measured(self) -> list[tuple[float, int]]:
        return self.marks[self.warmup :]


def configure(argv: list[str], defaults: dict):
    parser, _ = parse_sf_args(argv)
    parser.set_defaults(**defaults)
    return parse_full_cfg(parser, argv)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_sizes(parser)
    args, overrides = parser.parse_known_args()

    register_env(args.env_id, partial(make_pool, args.num_envs))
    clock = IterationClock(args.seconds)
    with tempfile.TemporaryDirectory() as train_dir:
        sizes = dict(
            rollout=args.num_steps,
            batch_size=args.num_envs * args.num_steps // args.num_minibatches,
            num_batches_per_epoch=args.num_minibatches,
            num_epochs=args.update_epochs,
            seed=args.seed,
        )
        flags = [f"--env={args.env_id}", f"--train_dir={train_dir}", *overrides]
        cfg, runner = make_runner(configure(flags, CONFIGURATION | sizes))
        runner.register_observer(clock)
        status = runner.init()
        if status == ExperimentStatus.SUCCESS:
            status = runner.run()
        if status != ExperimentStatus.SUCCESS:
            for process in multiprocessing.active_children():  # or they keep running and we wait for them
                process.terminate()
            raise SystemExit(f"Sample Factory ended with status {status}")
        (checkpoint,) = Path(train_dir).rglob("checkpoint_*.pth")
        optimizer_steps, trained = map(int, checkpoint.stem.split("_")[1:])

    measured = clock.measured()
    (begin, first), (end, last) = measured[0], measured[-1]
    network = create_actor_critic(cfg, runner.env_info.obs_space, runner.env_info.action_space)
    result = {
        "steps_per_second": median((n1 - n0) / (t1 - t0) for (t0, n0), (t1, n1) in pairwise(measured)),
        "steps_per_second_overall": (last - first) / (end - begin),
        "updates": len(measured) - 1,
        "samples": {"collected": sum(runner.samples_collected), "trained": trained},
        "epochs": optimizer_steps * cfg.batch_size / trained,  # fewer than configured: it stopped early
        "least_valid": clock.valid,
        "largest_lag": clock.lag,
        "parameters": sum(p.numel() for p in network.parameters()),
        "versions": {"sample_factory": version("sample-factory"), "torch": torch.__version__},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
