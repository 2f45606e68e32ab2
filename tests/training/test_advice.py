"""The first line of a run whose defaults were made for a GPU, on a machine without one."""

import numpy as np
import pytest

from cleanba import cleanba_ppo
from cleanba.agents.networks import fits_nature
from cleanba.envs.spec import ActionSpec, ArraySpec, EnvSpec
from cleanba.training import setup as module
from cleanba.training.setup import advice, make_setup


def first_line(**flags):
    return advice(make_setup(cleanba_ppo.Args(**flags), cleanba_ppo.make_algorithm))


def test_it_names_the_command_that_fits_this_machine(monkeypatch):
    line = first_line(env_id="Pong-v5", total_timesteps=10_000_000)
    assert line == (
        "10,000,000 steps of Pong-v5 take many hours without a GPU, or days; "
        "`cleanba ppo-fit --env-id Pong-v5` is sized for this machine and takes minutes"
    )
    monkeypatch.setattr(module, "on_accelerator", lambda: True)
    assert first_line(env_id="Pong-v5", total_timesteps=10_000_000) is None


@pytest.mark.parametrize(
    "flags",
    [
        dict(env_id="Pong-v5", total_timesteps=100_000),
        dict(env_id="CartPole-v1", total_timesteps=10_000_000),
    ],
)
def test_short_runs_and_small_tasks_need_none(flags):
    assert first_line(**flags) is None


@pytest.mark.parametrize(("shape", "fits"), [((4, 84, 84), True), ((36, 36, 3), True), ((35, 40, 3), False)])
def test_images_that_its_network_cannot_take_get_none(shape, fits):
    obs = {"image": ArraySpec(shape, np.dtype(np.uint8)), "speed": ArraySpec((2,), np.dtype(np.float32))}
    assert fits_nature(EnvSpec("gymnasium", "Own-v0", {}, obs, ActionSpec("discrete", n=2))) == fits
