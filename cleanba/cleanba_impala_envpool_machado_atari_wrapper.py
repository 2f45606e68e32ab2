"""IMPALA with the Atari settings of Machado et al. 2017."""

from cleanba.cleanba_impala import Args, main

ARGS = Args(exp_name="cleanba_impala_envpool_machado_atari_wrapper", atari_preset="machado")

if __name__ == "__main__":
    main(ARGS)
