"""IMPALA with the Atari settings of Espeholt et al. 2018."""

from cleanba.cleanba_impala import Args, main

ARGS = Args(exp_name="cleanba_impala_envpool_impala_atari_wrapper", atari_preset="impala")

if __name__ == "__main__":
    main(ARGS)
