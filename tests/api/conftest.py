from typing import Any

import pytest

import cleanba


@pytest.fixture
def small(tmp_path) -> dict[str, Any]:
    """Flags of a training of five updates, in a second or so."""
    return dict(
        env_id="CartPole-v1",
        runs_dir=tmp_path / "runs",
        local_num_envs=4,
        num_actor_threads=1,
        num_steps=16,
        total_timesteps=5 * 64,
        hiddens=[16],
        env_threads=2,
        progress=False,
    )


@pytest.fixture
def train(small):
    def train(algorithm: Any = "ppo", **flags: Any) -> cleanba.Training:
        return cleanba.train(algorithm, **small | flags)

    return train
