"""PPO with 60 environments on one actor thread, acting while learning, IMPALA's Atari settings."""

from cleanba.cleanba_ppo import Args, main

ARGS = Args(
    exp_name="cleanba_ppo_envpool_impala_atari_wrapper",
    atari_preset="impala",
    local_num_envs=60,  # divides over 1, 2, 3, 4, 5 and 6 learners
    num_actor_threads=1,
    concurrency=True,
)

if __name__ == "__main__":
    main(ARGS)
