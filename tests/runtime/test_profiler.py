import json
import os
from types import SimpleNamespace

import pytest

from cleanba.runtime import profiler
from cleanba.runtime.profiler import busy_seconds, covered, profile_summary


def test_time_is_counted_once():
    assert covered([(0, 2), (1, 3), (5, 6), (5, 5.5)]) == 4
    assert covered([]) == 0


def test_a_device_is_busy_while_one_of_its_streams_is(monkeypatch, tmp_path):
    def line(name, *events):
        return SimpleNamespace(name=name, events=[SimpleNamespace(start_ns=a, end_ns=b) for a, b in events])

    streams = [line("Stream #14(Compute)", (0, 2e9), (3e9, 4e9)), line("Stream #15(MemcpyH2D)", (1e9, 3e9))]
    planes = [
        SimpleNamespace(name="/device:GPU:0", lines=[*streams, line("XLA Modules", (0, 9e9))]),
        SimpleNamespace(name="/host:CPU", lines=[line("Stream of thought", (0, 9e9))]),
        SimpleNamespace(name="/device:CUSTOM:Megascale Trace", lines=[]),
    ]
    fake = SimpleNamespace(from_file=lambda path: SimpleNamespace(planes=planes))
    monkeypatch.setattr(profiler.jax.profiler, "ProfileData", fake)
    assert busy_seconds(tmp_path) == {"GPU:0": 4.0}


@pytest.mark.parametrize("content", ["{}", "[]", "{", '{"updates": [1, 2], "devices_busy": {"GPU": "x"}}'])
def test_a_damaged_summary_ends_no_run(tmp_path, content):
    (tmp_path / "summary.json").write_text(content)
    assert profile_summary(tmp_path) == f"{tmp_path / 'summary.json'} is damaged"
    (tmp_path / "summary.json").unlink()
    os.mkfifo(tmp_path / "summary.json")
    assert profile_summary(tmp_path) == ""


@pytest.mark.parametrize(("updates", "traced"), [(8, [4, 5]), (4, [4, 4]), (2, [2, 2])])
def test_a_run_traces_a_few_of_its_updates(run, updates, traced):
    outcome, rows = run(profile=True, total_timesteps=updates * 64)
    assert len(rows) == updates
    folder = outcome.run_dir / "profile"
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["updates"] == traced and 0 < summary["cores_used"] < 2 * summary["cores"]
    assert len(list(folder.rglob("*.xplane.pb"))) == 1
    assert f"profile of updates {traced[0]} to {traced[1]}:" in profile_summary(folder)


def test_without_the_flag_there_is_no_profile(run):
    outcome, _ = run()
    assert not (outcome.run_dir / "profile").exists()
    assert profile_summary(outcome.run_dir / "profile") == ""
