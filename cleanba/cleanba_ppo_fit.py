"""PPO with a layout and sizes that fit the machine it starts on: what `make train` runs."""

import sys

import jax

from cleanba.cleanba_ppo import Args, main
from cleanba.runtime.command import command
from cleanba.runtime.determinism import make_deterministic


def fitting_args() -> Args:
    devices = len(jax.local_devices())
    if jax.default_backend() == "cpu":
        return Args(  # a small network, small batches, an easier preset: something to see in minutes
            exp_name="cleanba_ppo_fit",
            total_timesteps=150_000,
            atari_preset="impala",
            local_num_envs=8,
            num_actor_threads=1,
            num_steps=32,
            network="nature",
        )
    learners = tuple(range(1, devices)) or (0,)  # the first GPU acts, the others learn
    return Args(
        exp_name="cleanba_ppo_fit",
        total_timesteps=10_000_000,
        local_num_envs=64 // len(learners) * len(learners),
        learner_device_ids=learners,
        concurrency=True,
    )


if __name__ == "__main__":
    if not {"--no-deterministic", "--no_deterministic"} & set(sys.argv):
        with command():
            make_deterministic()  # before the first look at the devices
    main(fitting_args())
