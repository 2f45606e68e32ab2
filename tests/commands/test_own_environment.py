"""A user's own environment is an equal citizen: examples/own_environment.py, from a folder elsewhere."""

import os
import shutil
import subprocess
import sys

import pytest
from helpers.runs import REPO, read_rows

SMALL = ["--num-steps", "16", "--local-num-envs", "4", "--num-actor-threads", "1", "--network", "mlp"]
OWN = "own_environment:Catch-v0"


@pytest.fixture
def here(tmp_path):
    """A folder with the environment, from which commands are started."""
    shutil.copy(REPO / "examples/own_environment.py", tmp_path)
    return tmp_path


def run(here, *command):
    """As the installed command does: with nothing of this folder on the path."""
    env = os.environ | {"PYTHONPATH": str(REPO), "JAX_NUM_CPU_DEVICES": "1"}
    start = [sys.executable, "-P", "-m", "cleanba"] if command[0] != "python" else [sys.executable]
    argv = [*start, *command[command[0] == "python" :]]
    return subprocess.run(argv, cwd=here, env=env, capture_output=True, text=True, timeout=200)


def test_it_trains_saves_films_evaluates_and_resumes(here):
    script = ["python", "own_environment.py", *SMALL]
    done = run(here, *script, "--total-timesteps", "256", "--save-model", "--capture-video")
    assert done.returncode == 0, done.stderr
    (run_dir,) = (here / "runs").iterdir()
    assert [path.suffix for path in run_dir.rglob("*.mp4")] == [".mp4"]
    shown = run(here, "eval", str(run_dir), "--env-id", OWN, "--episodes", "3")
    assert shown.returncode == 0 and f"3 episodes of {OWN}: return" in shown.stdout, shown.stderr
    done = run(here, *script, "--total-timesteps", "512", "--resume", str(run_dir))
    assert done.returncode == 0, done.stderr
    assert max(row.get("update", 0) for row in read_rows(run_dir)) == 8


@pytest.mark.slow
def test_a_module_trains_films_resumes_reports_and_is_evaluated_only_if_named(here):
    keep = ["--save-model", "--capture-video"]
    done = run(here, "ppo", *SMALL, "--env-id", OWN, "--total-timesteps", "128", *keep)
    assert done.returncode == 0, done.stderr
    (run_dir,) = (here / "runs").iterdir()
    done = run(here, "ppo", "--resume", str(run_dir), "--total-timesteps", "256")
    assert done.returncode == 0, done.stderr
    assert (run_dir / "replay.mp4").stat().st_size > 0
    done = run(here, "report", str(run_dir), "--out", "report")
    assert done.returncode == 0 and OWN in (here / "report/index.html").read_text(), done.stderr
    shown = run(here, "eval", str(run_dir), "--env-id", OWN, "--episodes", "3")
    assert shown.returncode == 0 and "3 episodes of" in shown.stdout, shown.stderr
    refused = run(here, "eval", str(run_dir))
    assert refused.returncode == 2
    assert f"allow it with --env-id {OWN}" in refused.stderr.replace("\n", " ")


@pytest.mark.slow
def test_it_is_learned_and_reported(here):
    done = run(here, "python", "own_environment.py", "--total-timesteps", "60000")
    assert done.returncode == 0, done.stderr
    (run_dir,) = (here / "runs").iterdir()
    assert read_rows(run_dir)[-1]["charts/avg_episodic_return"] > 0.6
    done = run(here, "report", str(run_dir), "--out", "report")
    assert done.returncode == 0 and "Catch-v0" in (here / "report/index.html").read_text(), done.stderr
