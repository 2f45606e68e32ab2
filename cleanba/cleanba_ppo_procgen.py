"""PPO for Procgen, for example `--env-id CoinrunEasy-v0`. EnvPool's Procgen needs Qt 5: on Debian and Ubuntu
`apt install libqt5gui5`.

Values are those of CleanRL's ppo_procgen.py (Huang et al. 2022), which follow Cobbe et al. 2020 on one
machine.
"""

from cleanba.cleanba_ppo import Args, main

ARGS = Args(
    exp_name="cleanba_ppo_procgen",
    env_id="CoinrunEasy-v0",
    total_timesteps=25_000_000,  # of the easy games, Cobbe et al. 2020
    local_num_envs=64,
    num_steps=256,
    num_actor_threads=1,
    network="impala",  # Cobbe et al. 2020, on images of 64 × 64 × 3
    normalize_rewards=True,  # Cobbe et al. 2020, as all below
    learning_rate=5e-4,
    anneal_lr=False,
    gamma=0.999,
    gae_lambda=0.95,
    num_minibatches=8,
    update_epochs=3,
    clip_coef=0.2,
    ent_coef=0.01,
    vf_coef=0.5,
    max_grad_norm=0.5,
)

if __name__ == "__main__":
    main(ARGS, description=__doc__)
