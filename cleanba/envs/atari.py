"""EnvPool options for Atari: the presets of --atari-preset."""

from typing import Any

ATARI_COMMON = dict(
    use_fire_reset=True,  # some games wait for FIRE at their start
    reward_clip=True,  # to -1, 0 or 1 for learning, Mnih et al. 2015; reported returns are raw
    max_episode_steps=27_000,  # 108,000 frames, half an hour of play: Hessel et al. 2018
    frame_skip=4,  # Mnih et al. 2015
    img_height=84,  # Mnih et al. 2015
    img_width=84,  # Mnih et al. 2015
    gray_scale=True,  # Mnih et al. 2015
    stack_num=4,  # Mnih et al. 2015
)

FRAME_STACKS = [dict(stack_num=frames) for frames in range(1, 17)]  # what --frame-stack can give

ATARI_PRESETS: dict[str, dict[str, Any]] = {
    "machado": dict(
        **ATARI_COMMON,
        repeat_action_probability=0.25,  # sticky actions: Machado et al. 2017
        full_action_space=True,  # all 18: Machado et al. 2017
        episodic_life=False,  # an episode is a game: Machado et al. 2017
        noop_max=1,  # sticky actions bring the randomness: Machado et al. 2017; 1 is EnvPool's least
    ),
    "impala": dict(
        **ATARI_COMMON,
        repeat_action_probability=0.0,  # Espeholt et al. 2018
        full_action_space=False,  # Espeholt et al. 2018
        episodic_life=True,  # a lost life ends an episode: Espeholt et al. 2018
        noop_max=30,  # up to 30 idle steps at the start: Mnih et al. 2015, Espeholt et al. 2018
    ),
}
