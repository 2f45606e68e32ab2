"""PPO as in cleanba_ppo_envpool_impala_atari_wrapper.py, with the Atari settings of Machado et al. 2017."""

from dataclasses import replace

from cleanba.cleanba_ppo import main
from cleanba.cleanba_ppo_envpool_impala_atari_wrapper import ARGS

MACHADO = replace(ARGS, exp_name="cleanba_ppo_envpool_machado_atari_wrapper", atari_preset="machado")

if __name__ == "__main__":
    main(MACHADO)
