"""An environment of your own, in one file outside the package. From its folder:

python own_environment.py --save-model                      train, save and evaluate
cleanba eval RUN --env-id own_environment:Catch-v0          evaluate; the module is named, so it is imported
cleanba impala --env-id own_environment:Catch-v0            another algorithm
"""

import gymnasium
import numpy as np
from gymnasium import spaces

from cleanba.cleanba_ppo import Args, main

SIZE = 16  # pixels; the ball needs as many steps to fall


class Catch(gymnasium.Env):
    """Catch the ball that falls: move a paddle of three pixels to the left, to the right, or not at all."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012
    observation_space = spaces.Box(0, 255, (SIZE, SIZE, 1), np.uint8)  # three axes of uint8: an image
    action_space = spaces.Discrete(3)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)  # all that is random comes from self.np_random
        self.row, self.ball, self.paddle = 0, int(self.np_random.integers(SIZE)), SIZE // 2
        return self.image(), {}

    def step(self, action):
        self.row += 1
        self.paddle = int(np.clip(self.paddle + action - 1, 1, SIZE - 2))
        terminated = self.row == SIZE - 1
        reward = float(abs(self.ball - self.paddle) <= 1) if terminated else 0.0
        return self.image(), reward, terminated, False, {}

    def image(self):
        image = np.zeros((SIZE, SIZE, 1), np.uint8)
        image[SIZE - 1, self.paddle - 1 : self.paddle + 2] = 128
        image[self.row, self.ball] = 255
        return image

    def render(self):
        return self.image().repeat(8, axis=0).repeat(8, axis=1).repeat(3, axis=2)


gymnasium.register("Catch-v0", entry_point=Catch)  # type: ignore[arg-type]

ARGS = Args(
    exp_name="catch",
    env_id="Catch-v0",
    total_timesteps=200_000,
    local_num_envs=16,
    num_steps=32,
    channels=(8, 16),
    hiddens=(64,),
    learning_rate=1e-3,
)

if __name__ == "__main__":
    main(ARGS)
