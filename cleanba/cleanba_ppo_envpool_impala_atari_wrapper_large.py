"""PPO with 60 environments, IMPALA's Atari settings, and a network four times as wide. For several GPUs: the
learners have most of the work.

Values are those of cleanba_ppo_envpool_impala_atari_wrapper.py, but for the network's channels.
"""

from dataclasses import replace

from cleanba.cleanba_ppo import main
from cleanba.cleanba_ppo_envpool_impala_atari_wrapper import ARGS as SMALL

ARGS = replace(SMALL, exp_name=f"{SMALL.exp_name}_large", channels=(64, 128, 128))

if __name__ == "__main__":
    main(ARGS, description=__doc__)
