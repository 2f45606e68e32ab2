"""PPO with 60 environments and the recommended Atari settings: sticky actions, all 18 actions, whole games.
For several GPUs, and for scores to compare with recent work.

Values are those of cleanba_ppo_envpool_impala_atari_wrapper.py, environments those of Machado et al. 2017
(arXiv 1709.06009).
"""

from dataclasses import replace

from cleanba.cleanba_ppo import main
from cleanba.cleanba_ppo_envpool_impala_atari_wrapper import ARGS as IMPALA_SETTINGS

ARGS = replace(IMPALA_SETTINGS, exp_name="cleanba_ppo_envpool_machado_atari_wrapper", atari_preset="machado")

if __name__ == "__main__":
    main(ARGS, description=__doc__)
