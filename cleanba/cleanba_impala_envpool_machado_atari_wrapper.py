"""IMPALA with the recommended Atari settings: sticky actions, all 18 actions, whole games. For scores to
compare with recent work.

Environments are those of Machado et al. 2017 (arXiv 1709.06009), all other values those of Espeholt et al.
2018 (arXiv 1802.01561).
"""

from cleanba.cleanba_impala import Args, main

ARGS = Args(exp_name="cleanba_impala_envpool_machado_atari_wrapper", atari_preset="machado")

if __name__ == "__main__":
    main(ARGS, description=__doc__)
