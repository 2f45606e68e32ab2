"""PPO with a layout and sizes that fit the machine it starts on: what `make train` runs."""

import sys
from dataclasses import replace

import jax

from cleanba.cleanba_ppo import Args, main
from cleanba.cleanba_ppo_atari_fast import ARGS as FAST
from cleanba.runtime.command import command
from cleanba.runtime.determinism import make_deterministic

# For two cores: what scored highest for its computing time of all that was tried (benchmarks/NOTES.md).
ON_CPU = Args(
    exp_name="cleanba_ppo_fit",
    total_timesteps=200_000,
    atari_preset="impala",
    local_num_envs=16,
    num_actor_threads=1,
    num_steps=64,
    num_minibatches=8,
    learning_rate=1e-3,
    anneal_lr=False,
    clip_coef=0.2,
    network="nature",
    hiddens=(512,),
)


def fitting_args() -> Args:
    if jax.default_backend() == "cpu":
        return ON_CPU
    learners = tuple(range(1, len(jax.local_devices()))) or (0,)  # the first GPU acts, the others learn
    return replace(
        FAST,
        exp_name="cleanba_ppo_fit",
        total_timesteps=10_000_000,
        local_num_envs=FAST.local_num_envs // len(learners) * len(learners),
        learner_device_ids=learners,
    )


if __name__ == "__main__":
    if not {"--no-deterministic", "--no_deterministic"} & set(sys.argv):
        with command():
            make_deterministic()  # before the first look at the devices
    main(fitting_args())
