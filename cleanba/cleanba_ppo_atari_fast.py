"""PPO for a high score soon, on one GPU: Breakout and Pong within minutes.

Values that differ from those of cleanba_ppo.py are mostly those of rl_games for Pong and Breakout.
What it reaches is in benchmarks/RESULTS.md, what was tried in benchmarks/NOTES.md. benchmarks/scores.py
measures it.
"""

from cleanba.cleanba_ppo import Args, main

ARGS = Args(
    exp_name="cleanba_ppo_atari_fast",
    atari_preset="impala",  # Espeholt et al. 2018: games that end with a life and need no sticky actions
    local_num_envs=64,  # in each of two actor threads: while one waits for the GPU, the other steps
    num_steps=32,  # short rollouts: an update every 4,096 steps, with minibatches of 1,024 rows
    concurrency=True,  # the environments are the limit: they never wait for the learner
    learning_rate=5e-4,  # between rl_games' 3e-4 (Pong) and 8e-4 (Breakout)
    anneal_lr=False,  # as rl_games' Breakout; a run that is stopped early has lost nothing
    clip_coef=0.2,  # rl_games; Schulman et al. 2017 have 0.1 for Atari
    compute_dtype="bfloat16",  # gradients 1.7 times as fast on an H200
    gradient_chunk=1024,  # learning alone 35,890 steps/s there, against 21,312 in chunks of 256 rows
)

if __name__ == "__main__":
    main(ARGS, description=__doc__)
