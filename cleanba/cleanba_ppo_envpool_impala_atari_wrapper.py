"""PPO with 60 environments that divide over 1 to 6 learners, acting while learning, and IMPALA's Atari
settings. For several GPUs, and for scores to compare with the original Cleanba.

Values are those of the script of this name in the original repository (Huang et al. 2023, arXiv 2310.00036),
environments those of Espeholt et al. 2018.
"""

from cleanba.cleanba_ppo import Args, main

ARGS = Args(
    exp_name="cleanba_ppo_envpool_impala_atari_wrapper",
    atari_preset="impala",
    local_num_envs=60,  # divides over 1, 2, 3, 4, 5 and 6 learners
    num_actor_threads=1,
    concurrency=True,
)

if __name__ == "__main__":
    main(ARGS, description=__doc__)
