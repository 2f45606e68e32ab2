"""PPO for continuous control: MuJoCo, dm_control and Box2D, for example `--env-id HalfCheetah-v4`.

Values are those of CleanRL's ppo_continuous_action.py (Huang et al. 2022), with its batch of 2,048 steps
taken from eight environments instead of one.
"""

from cleanba.cleanba_ppo import Args, main

ARGS = Args(
    exp_name="cleanba_ppo_continuous",
    env_id="HalfCheetah-v4",
    total_timesteps=1_000_000,
    local_num_envs=8,  # ours: 8 × 256 is CleanRL's 1 × 2,048
    num_steps=256,
    num_actor_threads=1,
    network="mlp",
    hiddens=(64, 64),  # Schulman et al. 2017, as tanh and the separate critic
    activation="tanh",
    separate_critic=True,
    normalize_observations=True,  # CleanRL, as all below
    normalize_rewards=True,
    learning_rate=3e-4,  # Schulman et al. 2017
    gamma=0.99,
    gae_lambda=0.95,
    num_minibatches=32,
    update_epochs=10,
    clip_coef=0.2,
    ent_coef=0.0,
    vf_coef=0.5,
    max_grad_norm=0.5,
)

if __name__ == "__main__":
    main(ARGS, description=__doc__)
