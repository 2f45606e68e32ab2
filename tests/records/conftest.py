"""Runs to resume."""

import shutil

import pytest
from helpers.runs import ALL_CHECKPOINTS, SMALL, cut_back

from cleanba import cleanba_ppo


@pytest.fixture(scope="session")
def killed_run(tmp_path_factory):
    """A run killed after its checkpoint of update 4 of 10. Tests change a copy, `killed`."""
    runs_dir = tmp_path_factory.mktemp("killed")
    sizes = ["--hiddens", "16", "--total-timesteps", "640", "--gradient-chunk", "100"]
    cleanba_ppo.main(argv=[*SMALL, *ALL_CHECKPOINTS, *sizes, "--runs-dir", str(runs_dir)])
    (run_dir,) = runs_dir.iterdir()
    return cut_back(run_dir, 4)


@pytest.fixture
def killed(killed_run, tmp_path):
    return shutil.copytree(killed_run, tmp_path / killed_run.name)
