"""The model file of a run, and what a run without one is told."""

import os
import shutil
from contextlib import closing

import pytest
from helpers.models import make_model
from helpers.runs import REPO

from cleanba.config.errors import UsageError
from cleanba.evaluation.model import load_model, save_model
from cleanba.records.run_folder import MetricsFile
from cleanba.records.run_model import find_run_model

FINISHED = REPO / "tests/records/data/old_run"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "runs/a"
    shutil.copytree(FINISHED, run)
    for model in run.glob("*.cleanrl_model"):
        model.unlink()
    return run


def test_a_run_without_a_model_is_told_the_command_that_saves_one(folder):
    with pytest.raises(
        UsageError, match="^runs/a has no model; `cleanba ppo --resume runs/a --save-model` s"
    ):
        find_run_model("runs/a")
    (folder / "finished.json").unlink()
    with pytest.raises(UsageError, match="runs/a --save-model` continues it and saves one$"):
        find_run_model("runs/a")
    with closing(MetricsFile(folder)), pytest.raises(UsageError, match="it is still training"):
        find_run_model("runs/a")
    shutil.rmtree(folder / "checkpoints")
    with pytest.raises(UsageError, match="runs/a has no model; train with --save-model"):
        find_run_model("runs/a")


def test_latest_is_the_model_that_was_saved_last(folder):
    with pytest.raises(UsageError, match="no run with a model in runs/"):
        find_run_model("latest")
    for age, name in ((9, "a"), (3, "sweep/b"), (6, "c")):
        path = folder.parent / name / "ppo.cleanrl_model"
        path.parent.mkdir(parents=True, exist_ok=True)
        save_model(path, make_model())
        os.utime(path, (1e9 - age, 1e9 - age))
    (folder.parent / "sweep/old.cleanrl_model").symlink_to("nowhere")
    assert str(find_run_model("latest")) == "runs/sweep/b/ppo.cleanrl_model"
    assert str(find_run_model("runs/a")) == "runs/a/ppo.cleanrl_model"


def test_a_link_to_nothing_is_not_the_latest_model(folder):
    (folder / "b.cleanrl_model").symlink_to("nothing")
    with pytest.raises(UsageError, match="no run with a model in runs/"):
        find_run_model("latest")
    with pytest.raises(UsageError, match=r"^runs/a/b.cleanrl_model cannot be read: No such file"):
        load_model(find_run_model("runs/a"))
    save_model(folder / "a.cleanrl_model", make_model())
    assert str(find_run_model("latest")) == "runs/a/a.cleanrl_model"
