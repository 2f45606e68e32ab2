"""A report that several test modules examine."""

import numpy as np
import pytest
from helpers.report import make_run

from cleanba import cleanba_report

GAMES = ["Breakout-v5", "Pong-v5", "Boxing-v5", "Alien-v5", "Qbert-v5", "Hero-v5", "CartPole-v1"]


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """The folder of the runs and that of their report, which has everything a report can have."""
    folder = tmp_path_factory.mktemp("report")
    rng = np.random.default_rng(0)
    for g, game in enumerate(GAMES):
        for k, group in enumerate(["ppo", "<b>impala</b>"]):
            for seed in (1, 2, 3):
                curve = (np.cumsum(rng.random(30)) * (1 + g) * (1 + k)).tolist()
                name, gamma = f"{g}-{k}-{seed}", 0.9 + k / 20
                make_run(folder / "runs", game, group, seed, curve, name=name, gamma=gamma)
    make_run(folder / "runs", "Pong-v5", "ppo", 4, [3.0, 2.0], updates=30, finished=False)
    (folder / "published.csv").write_text("game,system,score\nBreakout,DQN,401.2\nPong,DQN,18.9\n")
    out = folder / "out"
    argv = [folder / "runs", "--out", out, "--baseline", folder / "published.csv"]
    cleanba_report.main([str(arg) for arg in argv])
    return folder / "runs", out
