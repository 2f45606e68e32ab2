"""Environment options and sizes of the rivals; their workers import this."""

import argparse

ATARI = dict(  # Cleanba's Atari preset "machado"
    stack_num=4,
    img_height=84,
    img_width=84,
    gray_scale=True,
    frame_skip=4,
    reward_clip=True,
    full_action_space=True,
    repeat_action_probability=0.25,
    noop_max=1,
    episodic_life=False,
    use_fire_reset=True,
    max_episode_steps=27_000,
)


def add_sizes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--env-id", default="Breakout-v5")
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--num-steps", type=int, default=32)
    parser.add_argument("--update-epochs", type=int, default=4)
    parser.add_argument("--num-minibatches", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
