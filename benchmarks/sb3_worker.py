"""Time Stable-Baselines3's PPO on EnvPool's environments, or on Gymnasium's in its SubprocVecEnv.
against_others.py runs this inside `.venv-sb3`.

The last line of the output is a JSON object with the median rate over the iterations and the overall rate.
"""

import argparse
import json
import time
from functools import partial
from itertools import pairwise
from statistics import median

import envpool
import stable_baselines3
import torch
import torch.nn.functional as F
from atari import ATARI, add_sizes
from envs_alone import make_env
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv, VecNormalize
from torch import nn


class EnvPoolVecEnv(VecEnv):
    """EnvPool as an SB3 VecEnv.

    EnvPool resets one step late: the observation that comes with `done` is the true final one, and the next
    row is a reset that ignored its action. SB3 cannot mask such rows: it trains on them, at the same speed.
    """

    def __init__(self, env_id: str, num_envs: int, seed: int):
        options = ATARI if ATARI.keys() <= set(envpool.make_spec(env_id).config._fields) else {}
        self.pool = envpool.make(env_id, env_type="gymnasium", num_envs=num_envs, seed=seed, **options)
        super().__init__(num_envs, self.pool.observation_space, self.pool.action_space)

    def reset(self):
        return self.pool.reset()[0]

    def step_async(self, actions):
        self.pool.send(actions.astype(self.action_space.dtype, copy=False))

    def step_wait(self):
        obs, reward, terminated, truncated, _ = self.pool.recv()
        done = terminated | truncated
        infos: list[dict] = [{} for _ in range(self.num_envs)]
        for i in done.nonzero()[0]:
            infos[i] = {"terminal_observation": obs[i], "TimeLimit.truncated": not terminated[i]}
        return obs, reward, done, infos

    def close(self):
        self.pool.close()

    # The rest of the interface is about single environments, which a pool does not have.

    def get_attr(self, attr_name, indices=None):
        return [None] * self.num_envs  # SB3 asks for `render_mode`

    def env_is_wrapped(self, wrapper_class, indices=None):
        return [False] * self.num_envs

    def set_attr(self, attr_name, value, indices=None):
        raise AttributeError(attr_name)

    def env_method(self, method_name, *args, indices=None, **kwargs):
        raise AttributeError(method_name)


class Residual(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.conv0 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        return x + self.conv1(F.relu(self.conv0(F.relu(x))))


class ImpalaResNet(BaseFeaturesExtractor):
    """The deep network of Espeholt et al. 2018, figure 3, without the LSTM."""

    def __init__(self, observation_space, channels=(16, 32, 32), hidden=256):
        super().__init__(observation_space, hidden)
        layers = []
        channels_in, height, width = observation_space.shape
        for channels_out in channels:
            layers += [nn.Conv2d(channels_in, channels_out, 3, padding=1), nn.MaxPool2d(3, 2, padding=1)]
            layers += [Residual(channels_out), Residual(channels_out)]
            channels_in, height, width = channels_out, (height + 1) // 2, (width + 1) // 2
        layers += [nn.ReLU(), nn.Flatten(), nn.Linear(channels_in * height * width, hidden), nn.ReLU()]
        self.torso = nn.Sequential(*layers)

    def forward(self, obs):
        return self.torso(obs)


POLICY_KWARGS = {
    "nature": {},  # CnnPolicy's default: NatureCNN, 512 features, linear heads
    "impala": dict(features_extractor_class=ImpalaResNet, net_arch=[]),
    "mlp": dict(net_arch=dict(pi=[64, 64], vf=[64, 64])),  # MlpPolicy's default: tanh, nothing shared
}


class IterationClock(BaseCallback):
    """Records the start of every iteration (rollout and update); ends learn() after `seconds`."""

    def __init__(self, seconds: float, warmup: int = 1, min_iterations: int = 3):
        super().__init__()
        self.seconds, self.warmup, self.min_iterations = seconds, warmup, min_iterations
        self.marks: list[float] = []
        self.done = False

    def _on_rollout_start(self):
        self.marks.append(time.perf_counter())
        measured = self.marks[self.warmup :]
        self.done = len(measured) > self.min_iterations and measured[-1] - measured[0] >= self.seconds

    def _on_step(self):
        return not self.done  # only this callback can stop learn()

    def durations(self) -> list[float]:
        measured = self.marks[self.warmup :]
        return [end - start for start, end in pairwise(measured)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", choices=POLICY_KWARGS, required=True)
    parser.add_argument("--subproc", action="store_true", help="a process for each Gymnasium environment")
    add_sizes(parser)
    args = parser.parse_args()

    steps = args.num_envs * args.num_steps
    if args.subproc:
        envs: VecEnv = SubprocVecEnv([partial(make_env, args.env_id)] * args.num_envs, "fork")
    else:
        envs = EnvPoolVecEnv(args.env_id, args.num_envs, args.seed)
    is_mlp = args.network == "mlp"
    model = PPO(
        "MlpPolicy" if is_mlp else "CnnPolicy",
        VecNormalize(envs) if is_mlp else envs,
        n_steps=args.num_steps,
        n_epochs=args.update_epochs,
        batch_size=steps // args.num_minibatches,
        policy_kwargs=POLICY_KWARGS[args.network],
        seed=args.seed,
        device="cpu",
    )
    model.set_logger(Logger(folder=None, output_formats=[]))  # the default leaves a folder in /tmp
    clock = IterationClock(args.seconds)
    model.learn(total_timesteps=10**9, callback=clock)
    model.env.close()

    durations = clock.durations()
    result = {
        "steps_per_second": median(steps / duration for duration in durations),
        "steps_per_second_overall": steps * len(durations) / sum(durations),
        "updates": len(durations),
        "parameters": sum(p.numel() for p in model.policy.parameters()),
        "threads": torch.get_num_threads(),
        "versions": {"stable_baselines3": stable_baselines3.__version__, "torch": torch.__version__},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
