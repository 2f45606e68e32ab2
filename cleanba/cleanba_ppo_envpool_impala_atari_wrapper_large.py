"""PPO as in cleanba_ppo_envpool_impala_atari_wrapper.py, with a network four times as wide."""

from dataclasses import replace

from cleanba.cleanba_ppo import main
from cleanba.cleanba_ppo_envpool_impala_atari_wrapper import ARGS

LARGE = replace(ARGS, exp_name=f"{ARGS.exp_name}_large", channels=(64, 128, 128))

if __name__ == "__main__":
    main(LARGE)
