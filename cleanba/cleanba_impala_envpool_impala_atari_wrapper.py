"""IMPALA with the Atari settings of its paper: no sticky actions, the game's own actions, a lost life ends an
episode. For scores to compare with IMPALA's.

All values are those of Espeholt et al. 2018 (arXiv 1802.01561).
"""

from cleanba.cleanba_impala import Args, main

ARGS = Args(exp_name="cleanba_impala_envpool_impala_atari_wrapper", atari_preset="impala")

if __name__ == "__main__":
    main(ARGS, description=__doc__)
