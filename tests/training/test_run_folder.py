"""A run whose folder is moved, deleted or full while it trains loses nothing, and promises only what is
there."""

import errno
import os
import re
import shutil

import pytest
from helpers.resuming import resume

from cleanba.config.errors import UsageError
from cleanba.envs.episodes import Episode
from cleanba.evaluation.evaluate import Evaluation
from cleanba.evaluation.model import load_model
from cleanba.records import checkpoint
from cleanba.records.recorder import RunRecorder
from cleanba.runtime.command import CleanExit
from cleanba.runtime.signals import Stopped

ALL = [1, 2, 3, 4, 5]


@pytest.fixture
def after_update(monkeypatch):
    """Do something to the run's folder after an update."""

    def after_update(number, action):
        write = RunRecorder.write

        def writing(recorder, update_result, reports):
            row = write(recorder, update_result, reports)
            if recorder.updates == number:
                action(recorder.run_dir)
            return row

        monkeypatch.setattr(RunRecorder, "write", writing)

    return after_update


def replace(run_dir):
    """By another folder with the same name."""
    run_dir.rename(run_dir.with_name("moved"))
    run_dir.mkdir()


def empty(run_dir):
    for path in run_dir.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def rewrite_metrics(run_dir):
    """As an editor or `sed -i` does."""
    (run_dir / "copy").write_text("their own")
    (run_dir / "copy").rename(run_dir / "metrics.jsonl")


@pytest.mark.parametrize(
    ("action", "said"),
    [
        (lambda run_dir: run_dir.rename(run_dir.with_name("moved")), "moved now; the run continues there"),
        (replace, "moved now; the run continues there"),
        (shutil.rmtree, "was deleted; the run continues in"),
        (empty, ""),
        (rewrite_metrics, ""),
    ],
    ids=["moved", "replaced", "deleted", "emptied", "rewritten"],
)
def test_everything_is_kept_where_the_run_says_it_is(run, after_update, capsys, tmp_path, action, said):
    after_update(2, action)
    outcome, rows = run(checkpoint_minutes=1e-9, save_model=True)
    assert said in capsys.readouterr().err
    assert (outcome.run_dir.name == "moved") == ("moved" in said)
    assert [row.get("update") for row in rows] == [*ALL, None]
    assert load_model(outcome.saved).steps == 320 and outcome.saved.parent == outcome.run_dir
    names = {path.name.split(".0")[0] for path in outcome.run_dir.iterdir()}
    assert {"args.json", "checkpoints", "evaluation.json", "finished.json"} <= names
    assert any(name.startswith("events.out") for name in names)
    assert resume(outcome.run_dir, "--total-timesteps 384").update == 5
    if action is rewrite_metrics:
        assert (outcome.run_dir / "metrics.jsonl.replaced").read_text() == "their own"


def test_a_folder_that_is_deleted_during_the_evaluation_is_made_again(run, monkeypatch, tmp_path):
    def deleting(*_, **__):
        (run_dir,) = tmp_path.iterdir()
        shutil.rmtree(run_dir)
        return Evaluation("CartPole-v1", 1, [Episode(1.0, 1)])

    monkeypatch.setattr("cleanba.training.finish.evaluate", deleting)
    outcome, rows = run(save_model=True)
    assert load_model(outcome.saved).steps == 320 and (outcome.run_dir / "evaluation.json").exists()
    assert [row.get("update") for row in rows] == [*ALL, None]
    assert resume(outcome.run_dir, "--total-timesteps 384").update == 5


def refuse(monkeypatch, times, number):
    """The first checkpoints cannot be written."""
    write, attempts = checkpoint.atomic_write, []

    def writing(path, data):
        attempts.append(path)
        if len(attempts) <= times:
            raise OSError(number, os.strerror(number))
        write(path, data)

    monkeypatch.setattr(checkpoint, "atomic_write", writing)


def test_the_end_of_a_run_waits_for_room(run, monkeypatch, capsys):
    monkeypatch.setattr("cleanba.runtime.files.RETRY_SECONDS", 0.01)
    refuse(monkeypatch, 4, errno.ENOSPC)
    outcome, _ = run()
    said = capsys.readouterr().err
    assert "no checkpoint of update 5 (No space left on device)" in said
    assert said.count("the last checkpoint finds no room (No space left on device): make some; waiting") == 1
    assert resume(outcome.run_dir, "--total-timesteps 384").update == 5


def test_a_model_that_was_saved_is_not_called_lost(run, monkeypatch, tmp_path):
    refuse(monkeypatch, 99, errno.EACCES)
    with pytest.raises(CleanExit, match="complete, but its last checkpoint could not be written") as failure:
        run(save_model=True)
    (run_dir,) = tmp_path.iterdir()
    (model,) = run_dir.glob("*.cleanrl_model")
    kept = f"(there was no checkpoint yet); its model is kept: --init-from {model} starts from it"
    assert failure.value.__notes__ == [f"the run cannot be resumed {kept}"]
    assert load_model(model).steps == 320


def test_checkpoints_that_were_deleted_are_not_promised(run, monkeypatch, after_update):
    def delete_and_fail(run_dir):
        shutil.rmtree(run_dir / "checkpoints")
        refuse(monkeypatch, 99, errno.EACCES)
        raise RuntimeError("boom")

    after_update(3, delete_and_fail)
    with pytest.raises(RuntimeError, match="boom") as failure:
        run(checkpoint_minutes=1e-9)
    assert re.fullmatch("lost: all [0-9]+ steps; its checkpoints are gone", failure.value.__notes__[0])


def test_a_disk_without_room_is_refused_before_the_training(run, monkeypatch, tmp_path):
    monkeypatch.setattr("cleanba.training.finish.free_bytes", lambda folder: 10_000)
    run(keep_checkpoints=1)
    shutil.rmtree(tmp_path)
    with pytest.raises(UsageError, match="room for 0.0 MiB, but 101 checkpoints and the model need 0.2 MiB;"):
        run(keep_checkpoints=100)
    assert not tmp_path.exists()


def test_a_run_that_stops_before_it_records_anything_leaves_no_folder(run, monkeypatch, tmp_path):
    def stopped(*_):
        raise Stopped("SIGINT")

    monkeypatch.setattr("cleanba.training.train.make_threads", stopped)
    with pytest.raises(Stopped):
        run()
    assert not list(tmp_path.iterdir())


def test_a_folder_whose_name_is_not_utf_8(run, tmp_path):
    runs_dir = os.fsdecode(bytes(tmp_path) + b"/r\xff")
    run_dir = run(runs_dir=runs_dir, save_model=True)[0].run_dir
    assert b"r\xff/CartPole" in os.fsencode(run_dir)
    assert load_model(next(run_dir.glob("*.cleanrl_model"))).steps == 5 * 16 * 4
    outcome, rows = run(resume=str(run_dir), runs_dir=runs_dir, total_timesteps=6 * 16 * 4)
    assert outcome.run_dir == run_dir and len([row for row in rows if "update" in row]) == 6


def test_a_model_that_could_not_be_loaded_is_refused_before_the_training(run, tmp_path):
    with pytest.raises(UsageError, match=r"could not be loaded again: too many layers \(67\)"):
        run(hiddens=(4,) * 64, save_model=True)
    assert not list(tmp_path.iterdir())
