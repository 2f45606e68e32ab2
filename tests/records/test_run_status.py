"""What became of a run, from its folder."""

import json
import shutil
from contextlib import closing

import pytest
from helpers.runs import REPO, edit_args

from cleanba.records.run_folder import MetricsFile
from cleanba.records.run_status import run_status

OLD_RUN = REPO / "tests/records/data/old_run"


@pytest.fixture
def folder(tmp_path):
    """A stopped run, after two updates."""
    shutil.copytree(OLD_RUN, tmp_path / "a run")
    (tmp_path / "a run/finished.json").unlink()
    return tmp_path / "a run"


def test_a_finished_run_has_nothing_to_continue():
    status = run_status(OLD_RUN)
    assert status.state == "finished" and status.resume_command is None
    assert (status.last["update"], status.checkpoint, status.algorithm) == (2, 2, "ppo")
    assert status.flags["env_id"] == "Breakout-v5" and status.episodic_return is None


def test_a_stopped_run_says_how_it_continues(folder):
    status = run_status(folder)
    assert status.state == "stopped" and status.can_resume
    assert status.resume_command == f"cleanba ppo --resume '{folder}'"


@pytest.mark.parametrize(
    ("changes", "start"),
    [
        (dict(algorithm="impala"), "cleanba impala"),
        (dict(algorithm="a2c.py"), "cleanba train a2c.py"),
        (dict(layout="a0-l0,1-d2"), "cleanba launch a0-l0,1-d2 ppo"),
    ],
)
def test_it_continues_with_its_own_algorithm_and_processes(folder, changes, start):
    record = json.loads((folder / "args.json").read_text())
    (folder / "args.json").write_text(json.dumps(record | changes))
    assert run_status(folder).resume_command == f"{start} --resume '{folder}'"


def test_a_run_is_running_while_its_rows_are_locked(folder):
    with closing(MetricsFile(folder)):
        status = run_status(folder)
    assert status.state == "running" and status.resume_command is None
    assert run_status(folder).state == "stopped"


def test_rows_after_the_last_update_and_damaged_ones_do_not_count(folder):
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"global_step": 64, "eval/episodic_return": 2.0}\n{"update": 3, "glob')
    assert run_status(folder).last["update"] == 2


def test_the_scores_of_its_evaluation(folder):
    (folder / "evaluation.json").write_text('{"scores": {"episodic_return": 5}}')
    assert run_status(folder).evaluation == {"episodic_return": 5.0}


def test_what_is_missing_has_a_name(folder):
    shutil.rmtree(folder / "checkpoints")
    status = run_status(folder)
    assert status.state == "stopped" and not status.can_resume and status.resume_command is None
    (folder / "metrics.jsonl").write_text("")
    assert run_status(folder).state == "empty"
    edit_args(folder, env_id="CartPole-v1")
    assert run_status(folder).flags["env_id"] == "CartPole-v1"
    for content in ("", "[]", "{", '{"args": 1}'):
        (folder / "args.json").write_text(content)
        status = run_status(folder)
        assert status.state == "damaged" and status.flags == {} and status.resume_command is None
    (folder / "args.json").unlink()
    assert run_status(folder).state == "damaged"
