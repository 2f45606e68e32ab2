"""A user's own algorithm file is an equal citizen: examples/a2c.py, from a folder outside the repository."""

import os
import shutil
import subprocess
import sys

import pytest
from helpers.runs import REPO, read_rows

from cleanba.config.errors import UsageError
from cleanba.evaluation.evaluate import evaluate
from cleanba.evaluation.model import load_model

SMALL = ["--env-id", "CartPole-v1", "--local-num-envs", "8", "--num-actor-threads", "1", "--env-threads", "2"]


@pytest.fixture
def here(tmp_path):
    """A folder with the algorithm, from which commands are started."""
    shutil.copy(REPO / "examples/a2c.py", tmp_path)
    return tmp_path


def run(here, *command):
    env = os.environ | {"PYTHONPATH": str(REPO), "JAX_NUM_CPU_DEVICES": "1"}
    start = [sys.executable, "-c", "from cleanba.cli import main; main()"]
    start = start if command[0] != "python" else [sys.executable]
    done = subprocess.run(
        [*start, *command[command[0] == "python" :]],
        cwd=here,
        env=env,
        capture_output=True,
        text=True,
        timeout=200,
    )
    return done


def only_run(here, folder="runs"):
    (run_dir,) = (here / folder).iterdir()
    return run_dir


def test_it_trains_saves_evaluates_and_resumes(here):
    done = run(here, "python", "a2c.py", *SMALL, "--total-timesteps", "1280", "--width", "8", "--save-model")
    assert done.returncode == 0, done.stderr
    run_dir = only_run(here)
    model = run_dir / "a2c.cleanrl_model"
    shown = run(here, "eval", str(run_dir))
    assert (
        shown.returncode == 2 and "was trained by a2c.py; give that file: --algorithm a2c.py" in shown.stderr
    )
    shown = run(here, "eval", str(run_dir), "--algorithm", "a2c.py", "--episodes", "3", "--seed", "5")
    assert shown.returncode == 0, shown.stderr
    expected = evaluate(load_model(model, str(here / "a2c.py")), episodes=3, seed=5)
    assert shown.stdout.splitlines()[1] == str(expected)
    flags = ["--resume", str(run_dir), "--total-timesteps", "2560"]
    done = run(here, "train", "a2c.py", *flags)
    assert done.returncode == 0, done.stderr
    assert max(row.get("update", 0) for row in read_rows(run_dir)) == 20

    other = (here / "a2c.py").read_text().replace("nn.relu(", "nn.tanh(")
    (here / "other.py").write_text(other)
    with pytest.raises(UsageError, match="answers differently"):
        load_model(model, str(here / "other.py"))


@pytest.mark.slow
def test_it_learns_benches_launches_and_reports(here):
    done = run(here, "train", "a2c.py", *SMALL, "--total-timesteps", "40960", "--runs-dir", "one")
    assert done.returncode == 0, done.stderr
    returns = [row.get("charts/avg_episodic_return", 0) for row in read_rows(only_run(here, "one"))]
    assert max(returns) > 60 > returns[9]
    plain = (here / "a2c.py").read_text().split('if __name__ == "__main__"')[0]
    (here / "plain.py").write_text(plain)  # it leaves starting it to the command
    layout = ["launch", "a0-l0-d2", "plain.py", *SMALL, "--total-timesteps", "2560", "--runs-dir", "two"]
    done = run(here, *layout)
    assert done.returncode == 0, done.stderr
    assert len(list((here / "two").iterdir())) == 1
    quick = ["--seconds", "0.1", "--repeats", "1", "--train-seconds", "0.5", "--out", "bench"]
    done = run(here, "bench", "a2c.py", *SMALL, *quick)
    assert done.returncode == 0 and "a2c on CartPole-v1" in done.stdout, done.stderr
    done = run(here, "report", "one", "two", "--out", "report")
    assert done.returncode == 0 and (here / "report/index.html").exists(), done.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "does not exist"), ("Args = int\n", "has no make_algorithm, so it is no algorithm")],
)
def test_files_that_are_no_algorithm_are_refused(here, content, message):
    if content:
        (here / "no.py").write_text(content)
    for command in (["train", "no.py"], ["bench", "no.py"]):
        shown = run(here, *command)
        assert shown.returncode == 2 and shown.stderr.count("\n") == 1
        assert message in shown.stderr
