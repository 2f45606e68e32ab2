"""PPO on Atari with a layout and sizes that fit the machine it starts on: what `make train` runs. Minutes on
two cores without a GPU; on GPUs a high score soon.

Without a GPU, values are what scored highest for its computing time on two cores (benchmarks/NOTES.md); with
GPUs those of cleanba_ppo_atari_fast.py, with the first GPU acting and the others learning.
"""

# First, for signals while the others are imported.
import cleanba.runtime.early_signals  # isort: skip  # noqa: F401

from dataclasses import replace

import jax

from cleanba.cleanba_ppo import Args, main
from cleanba.cleanba_ppo_atari_fast import ARGS as FAST

# For two cores: what scored highest for its computing time of all that was tried (benchmarks/NOTES.md).
ON_CPU = Args(
    exp_name="cleanba_ppo_fit",
    save_model=True,
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
        save_model=True,
        total_timesteps=10_000_000,
        local_num_envs=FAST.local_num_envs // len(learners) * len(learners),
        learner_device_ids=learners,
    )


ARGS = fitting_args  # called at the start of a run


if __name__ == "__main__":
    main(ARGS, description=__doc__)
