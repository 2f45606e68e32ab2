"""The logs of a resumed run: nothing twice, nothing missing."""

import json
import shutil

import pytest
from helpers.events import all_events, read_events
from helpers.runs import ALL_CHECKPOINTS, SMALL, checkpoint_metadata, cut_back, read_rows, run_python
from helpers.wandb_files import logged_steps, offline, read_run

from cleanba import cleanba_ppo
from cleanba.records.run_folder import MetricsFile

PPO = ["-m", "cleanba.cleanba_ppo"]
EVERY_ROW = ["--log-frequency", "1"]


def test_rows_after_the_checkpoint_are_removed(tmp_path):
    rows = [{"update": u, "global_step": 10 * u} for u in range(1, 6)] + [{"global_step": 50, "eval/x": 1}]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    for torn in ("", '{"update": 7, "gl', "\0\0\0\n", f'{{"global_step": 1{400 * "0"}}}\n'):
        (tmp_path / "metrics.jsonl").write_text(text + torn)
        metrics = MetricsFile(tmp_path)
        assert metrics.cut_after(3) == 50
        metrics.write({"update": 4})
        metrics.close()
        assert [row["update"] for row in read_rows(tmp_path)] == [1, 2, 3, 4]


def test_missing_rows_are_reported_and_later_ones_kept(tmp_path, capsys):
    lines = [json.dumps({"update": u, "global_step": 10 * u}) + "\n" for u in range(1, 7)]
    lines[1] = "damaged\n"
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    metrics = MetricsFile(tmp_path)
    metrics.cut_after(4)
    metrics.close()
    assert "is missing the rows of 1 updates" in capsys.readouterr().err
    assert (tmp_path / "metrics.jsonl").read_text() == "".join(lines[:4])


def test_tensorboard_drops_what_was_after_the_checkpoint(killed):
    previous = {path.name for path in killed.glob("events*")}
    cleanba_ppo.main(argv=["--resume", str(killed), "--log-frequency", "3"])
    (path,) = (path for path in killed.glob("events*") if path.name not in previous)
    for name in previous:
        (killed / name).unlink()

    sessions = [event.step for event in all_events(path) if event.HasField("session_log")]
    assert sessions == [4 * 64 + 1]
    assert [step for tag, step, _ in read_events(killed) if tag == "losses/loss"] == [6 * 64, 9 * 64, 10 * 64]


@pytest.mark.slow
def test_the_tracked_run_continues_and_repeats_nothing(tmp_path):
    """Rows up to update 6 were sent, the checkpoint is of update 4."""
    env = offline(tmp_path)
    flags = [*SMALL, *ALL_CHECKPOINTS, *EVERY_ROW, "--total-timesteps", 640, "--track"]
    first = run_python(tmp_path, *PPO, *flags, **env)
    assert first.returncode == 0, first.stderr
    (run_dir,) = (tmp_path / "runs").iterdir()
    shutil.move(run_dir / "wandb", tmp_path / "previous")
    again = cut_back(run_dir, 4)
    resumed = run_python(tmp_path, *PPO, "--resume", again, **env)
    assert resumed.returncode == 0, resumed.stderr
    assert logged_steps(tmp_path / "previous") == [64 * u for u in range(1, 11)]
    assert logged_steps(again) == [64 * u for u in range(7, 11)]
    assert read_run(tmp_path / "previous").run_id == read_run(again).run_id


@pytest.mark.slow
def test_tracking_that_starts_late_gets_all_rows_and_keeps_its_id(tmp_path):
    """Three parts: without tracking, with it, without. The second also gets the rows of the first."""
    env = offline(tmp_path) | {"WANDB_RUN_ID": "my.run"}
    run_python(tmp_path, *PPO, *SMALL, *ALL_CHECKPOINTS, *EVERY_ROW, "--total-timesteps", 320, **env)
    (run_dir,) = (tmp_path / "runs").iterdir()
    longer = ["--resume", run_dir, "--total-timesteps"]
    tracked = run_python(tmp_path, *PPO, *longer, 640, "--track", **env)
    assert tracked.returncode == 0, tracked.stderr
    assert logged_steps(run_dir) == [64 * u for u in range(1, 11)]
    untracked = run_python(tmp_path, *PPO, *longer, 704, "--no-track", **env)
    assert untracked.returncode == 0, untracked.stderr
    assert checkpoint_metadata(run_dir, 11)["tracker"] == "my.run"
