"""`cleanba report` reads TensorBoard events as CleanRL's scripts write them."""

import os
from pathlib import Path

import numpy as np
import pytest
from helpers.report import notes_of
from tensorboardX import SummaryWriter

from cleanba.analysis.report.compare import compare
from cleanba.analysis.report.runs import read_run

FLAGS = {"exp_name": "ppo_atari", "env_id": "BreakoutNoFrameskip-v4", "seed": 3, "total_timesteps": 1000}


def write_events(path: Path, episodes: list[tuple[int, float]], last_step: int) -> Path:
    """As CleanRL's scripts do."""
    writer = SummaryWriter(str(path))
    lines = [f"|{name}|{value}|" for name, value in FLAGS.items()]
    writer.add_text("hyperparameters", "|param|value|\n|-|-|\n" + "\n".join(lines))
    for step, value in episodes:
        writer.add_scalar("charts/episodic_return", value, step, walltime=1000.0 + step)
    for step in (last_step - 100, last_step):  # after each update
        writer.add_scalar("charts/SPS", 42, step, walltime=1000.0 + step)
    writer.close()
    return path


def test_events_of_cleanrl_are_read(tmp_path):
    episodes = [(step, float(step)) for step in range(10, 1000, 5)]  # 198 of them
    path = write_events(tmp_path / "BreakoutNoFrameskip-v4__ppo_atari__3__1700000000", episodes, 1000)
    run = read_run(path)
    assert {name: run.args[name] for name in FLAGS} == FLAGS
    assert (run.state, run.step, run.episodes, run.speed, run.frames) == ("finished", 1000, 198, 42, 4)
    assert run.score == np.mean([value for _, value in episodes[-100:]])
    assert run.curve.value[0] == 10 and run.curve.value[1] == 12.5  # means of all episodes so far
    assert run.curve.step[-1] == 995
    assert compare([run], ("exp_name",)).games == ["Breakout"]
    early = read_run(path, steps=100)
    assert (early.step, early.episodes) == (100, 19)
    assert early.score == np.mean([value for _, value in episodes[:19]])


@pytest.mark.parametrize(("last", "complete"), [(1000, True), (901, True), (900, False)])
def test_events_may_lack_steps_that_do_not_fill_a_batch(tmp_path, last, complete):
    path = write_events(tmp_path / "run", [(100, 1.0)], last)
    run = read_run(path)
    assert (run.step, run.batch, run.is_complete) == (last, 100, complete)
    assert run.state == ("finished" if complete else "running")
    (file,) = path.iterdir()
    os.utime(file, (0, 0))
    assert read_run(path).state == ("finished" if complete else "stopped")
    assert read_run(path, steps=last).is_complete


def test_events_of_a_resumed_script_count_once(tmp_path):
    path = write_events(tmp_path / "run", [(100, 1.0), (200, 3.0)], 200)
    writer = SummaryWriter(str(path), purge_step=150, filename_suffix=".2")
    writer.add_scalar("charts/episodic_return", 5.0, 200)
    writer.close()
    assert read_run(path).episodes == 2 and read_run(path).score == 3


def test_truncated_and_damaged_events(tmp_path):
    path = write_events(tmp_path / "run", [(100, 1.0), (200, 3.0)], 300)
    (file,) = path.iterdir()
    assert read_run(path).score == 2
    whole = file.read_bytes()
    file.write_bytes(whole[:-20])  # a record still being written
    assert read_run(path).score == 2 and read_run(path).damage == ""
    file.write_bytes(whole[:-20] + b"\xff" * 40)
    assert read_run(path).score == 2 and "is damaged" in read_run(path).damage
    file.write_bytes(b"\xff" * 100)
    assert read_run(path).state == "damaged"


def test_a_link_that_leads_nowhere_spoils_no_files_beside_it(tmp_path):
    path = write_events(tmp_path / "run", [(100, 1.0), (200, 3.0)], 300)
    (path / "events.out.tfevents.9").symlink_to("nowhere")
    run = read_run(path)
    assert (run.state, run.score) == ("running", 2) and run.damage.startswith("events.out.tfevents.9 is")


def test_a_logged_mean_is_used_only_without_episodes(tmp_path):
    for episodes, score in (([], 7), ([(100, 1.0), (200, 2.0)], 1.5)):
        path = write_events(tmp_path / f"Pong-v5__b__{len(episodes)}__2", episodes, 1000)
        writer = SummaryWriter(str(path), filename_suffix=".2")
        writer.add_scalar("charts/avg_episodic_return", 7.0, 900)
        writer.close()
        assert read_run(path).score == score
        found = notes_of(compare([read_run(path)], ("exp_name",)))
        noted = (
            "Scores over an unknown number of episodes, as the training script logged only their mean"
            in found
        )
        assert noted == (score == 7)
    no_returns = write_events(tmp_path / "other", [], 1000)
    assert read_run(no_returns).damage == "no charts/episodic_return; found charts/SPS"
