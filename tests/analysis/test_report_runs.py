"""`cleanba report` reads run folders, whatever state they are in."""

import fcntl
import json
import math
import os

import pytest
from helpers.report import compare_runs, make_run, notes_of, row

from cleanba.analysis.report.compare import compare
from cleanba.analysis.report.runs import MAX_ROWS, find_runs, read_run


def test_a_finished_run(tmp_path):
    run = read_run(make_run(tmp_path, "Breakout-v5", returns=[1.0, 4.0, 9.0]))
    assert (run.state, run.step, run.target, run.frames, run.speed) == ("finished", 300, 300, 4, 50.0)
    assert run.is_complete and run.score == 9 and run.damage == ""
    assert [x.tolist() for x in run.curve] == [[100, 200, 300], [2, 4, 6], [1, 4, 9]]
    assert run.about == {
        "commit": "0123456789",
        "hardware": "2 × AMD EPYC",
        "layout": "a0-l0-d1",
        "jax": "0.10",
    }


def test_a_running_run_has_its_file_locked(tmp_path):
    path = make_run(tmp_path, "Breakout-v5", updates=10, finished=False)
    assert read_run(path).state == "stopped" and not read_run(path).is_complete
    with (path / "metrics.jsonl").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert read_run(path).state == "running"


@pytest.mark.parametrize(
    ("text", "state", "values", "damage"),
    [
        (row(1, 5) + row(2, 6) + row(3, 7)[:-20], "stopped", [5, 6], ""),  # still being written
        (row(1, 5) + "nonsense\n" + row(3, 7), "stopped", [5, 7], "metrics.jsonl has damaged lines"),
        (row(1, 5) + row(2, "x") + row(3, 7), "stopped", [5, 7], "metrics.jsonl has damaged lines"),
        (row(1, 5) + row(2, math.nan) + row(3, 7), "stopped", [5, 7], "metrics.jsonl has damaged lines"),
        (row(1, 5) + row(2, 6) + "\0\0\0\n", "stopped", [5, 6], "metrics.jsonl has damaged lines"),
        (row(1, 5) + row(2, 6) + row(2, 8) + row(3, 9), "stopped", [5, 8, 9], ""),  # resumed after update 1
        (row(1, 5) + '{"global_step": 200, "seconds": 4}\n', "stopped", [5], ""),  # no episode yet
        (
            row(1, 5) + '{"global_step": 100, "eval/episodic_return": 7.0}\n',
            "stopped",
            [5],
            "",
        ),  # --save-model
        (row(1, 5) + row(2, 1e308) + row(3, 7), "stopped", [5, 7], "metrics.jsonl has damaged lines"),
        (row(1, 5) + row(2, 10**400) + row(3, 7), "stopped", [5, 7], "metrics.jsonl has damaged lines"),
        ("[]\n7\nnull\n", "damaged", [], "metrics.jsonl has damaged lines"),
        ("", "empty", [], ""),
        (None, "damaged", [], "no metrics.jsonl"),
    ],
)
def test_the_intact_part_of_damaged_metrics_is_read(tmp_path, text, state, values, damage):
    path = make_run(tmp_path, "Breakout-v5", finished=False, updates=10)
    (path / "metrics.jsonl").unlink()
    if text is not None:
        (path / "metrics.jsonl").write_text(text)
    run = read_run(path)
    assert (run.state, run.curve.value.tolist(), run.damage) == (state, values, damage)


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"args": 3}', '{"args": {}, "plan": []}'])
def test_a_run_without_flags_is_identified_by_its_folder_name(tmp_path, text):
    path = make_run(tmp_path, "ALE/Pong-v5", group="a__b", seed=7, name="Pong-v5__a__b__7__1700000000")
    (path / "args.json").unlink()
    if text is not None:
        (path / "args.json").write_text(text)
    run = read_run(path)
    assert run.args == {"env_id": "Pong-v5", "exp_name": "a__b", "seed": 7}
    assert run.state == "damaged" and "args.json" in run.damage


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("plan", "batch_size", None),
        ("plan", "updates", "x"),
        ("env_options", "frame_skip", None),
        ("machine", "actor_devices", ["a"]),
        ("code", "commit", 7),
        ("args", "total_timesteps", "many"),
        ("args", "env_id", ["a"]),
        ("args", "exp_name", None),
    ],
)
def test_odd_values_in_args_json_do_not_end_the_report(tmp_path, part, name, value):
    path = make_run(tmp_path, "Breakout-v5")
    record = json.loads((path / "args.json").read_text())
    record[part][name] = value
    (path / "args.json").write_text(json.dumps(record))
    assert read_run(path).curve.value.tolist() == [1, 2, 3]
    compare_runs(tmp_path)


def test_a_resumed_run_shows_all_its_parts(tmp_path):
    path = make_run(tmp_path, "Breakout-v5")
    record = json.loads((path / "args.json").read_text())
    record["parts"] = [{"code": {"commit": c * 10}, "layout": "a0-l0-d1"} for c in "aab"]
    (path / "args.json").write_text(json.dumps(record))
    after_resuming = row(2, 3).replace('"charts/SPS": 50.0, ', "")  # its first update has none
    (path / "metrics.jsonl").write_text(row(1, 2) + after_resuming)
    run = read_run(path)
    assert run.about == {"commit": "aaaaaaaaaa → bbbbbbbbbb", "layout": "a0-l0-d1"}
    assert run.speed == 50 and run.score == 3


def test_a_long_run_is_sampled_and_keeps_its_last_row(tmp_path):
    path = make_run(tmp_path, "Breakout-v5", returns=[float(i) for i in range(5_003)])
    curve = read_run(path).curve
    assert MAX_ROWS <= len(curve.value) < 2 * MAX_ROWS and curve.value[-1] == 5_002
    with (path / "metrics.jsonl").open("a") as file:
        file.write("cut off")
    assert read_run(path).score == 5_002
    early = read_run(path, steps=750)  # rows up to there are not thinned out
    assert (early.step, early.score, early.is_complete) == (700, 6, True)


def test_runs_are_found_at_any_depth_and_once(tmp_path):
    paths = [make_run(tmp_path / "x" / "y", "Breakout-v5"), make_run(tmp_path, "Pong-v5")]
    elsewhere = make_run(tmp_path.parent / f"{tmp_path.name}-elsewhere", "Alien-v5")
    (tmp_path / "link").symlink_to(elsewhere)
    (tmp_path / "circle").symlink_to(tmp_path)
    assert find_runs([tmp_path, paths[0], elsewhere]) == (sorted([*paths, tmp_path / "link"]), [])


def test_links_are_followed_down_but_not_up(tmp_path, monkeypatch):
    """To other disks, for instance; but whoever names a folder wants nothing of what it is in."""
    runs, disk = tmp_path / "home/runs", tmp_path / "disk/runs"
    own, other = make_run(runs / "sweep", "Pong-v5"), make_run(disk / "sweep", "Pong-v5")
    for unwanted in (tmp_path / "home", tmp_path / "disk"):
        make_run(unwanted, "Alien-v5")
    (runs / "disk").symlink_to(disk)
    (runs / "sweep/up").symlink_to("../..")
    (runs / "sweep/top").symlink_to("/")
    (disk / "up").symlink_to("..")
    (disk / "home").symlink_to(tmp_path / "home")
    (tmp_path / "link").symlink_to(runs)
    scandir = os.scandir

    def guarded(path):
        assert "/top/" not in str(path), "the whole machine is searched"
        return scandir(path)

    monkeypatch.setattr(os, "scandir", guarded)
    assert find_runs([runs]) == ([runs / "disk/sweep" / other.name, own], [])
    link = tmp_path / "link"
    assert find_runs([link]) == ([link / "disk/sweep" / other.name, link / "sweep" / own.name], [])


def test_a_folder_that_cannot_be_opened_is_noted(tmp_path, monkeypatch):
    make_run(tmp_path, "Breakout-v5")
    (tmp_path / "closed").mkdir()
    scandir = os.scandir

    def denied(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", denied)
    paths, unopened = find_runs([tmp_path])
    assert len(paths) == 1 and unopened == [f"{tmp_path}/closed: Permission denied"]
    comparison = compare([read_run(path) for path in paths], ("exp_name",), unopened=unopened)
    assert notes_of(comparison)["Folders that could not be opened"] == unopened
