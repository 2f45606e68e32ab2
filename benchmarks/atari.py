"""The Atari that the rivals play. Their workers import this, inside environments of their own."""

ATARI = dict(  # as Cleanba's preset "machado"
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
