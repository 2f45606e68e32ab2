"""Videos of episodes, and encoders that fail or are interrupted."""

import subprocess
import sys
from contextlib import suppress

import numpy as np
import pytest
from helpers.models import make_model
from helpers.own_envs import LENGTH, Cue
from helpers.videos import read_video

from cleanba.config.errors import UsageError
from cleanba.evaluation.evaluate import evaluate, recording
from cleanba.evaluation.video import Video

BLACK = np.zeros((64, 64, 3), np.uint8)


def test_a_video_shows_the_game_in_its_own_colours(tmp_path):
    model = make_model(env_id="Breakout-v5", atari_preset="impala", network="nature")
    with recording(model, tmp_path / "a.mp4") as video:
        result = evaluate(model, episodes=2, seed=1, video=video)
    fps, frames = read_video(tmp_path / "a.mp4")
    assert fps == 15  # a step is four of sixty frames a second
    length = result.episodes[0].length + 5  # and the first reset, and those after four lost lives
    assert frames.shape == (length, 630, 480, 3)  # 210 x 160, three times as large
    red_bricks = frames[0][175, 240].astype(int)
    assert red_bricks[0] > red_bricks[1] + 80 and red_bricks[0] > red_bricks[2] + 80


def test_an_own_environment_is_filmed_to_its_end_at_its_own_speed(tmp_path, monkeypatch):
    monkeypatch.setitem(Cue.metadata, "render_fps", 12)
    model = make_model(env_id="helpers.own_envs:Cue-v0", env_options='{"action_repeat": 2}')
    with recording(model, tmp_path / "a.mp4") as video:
        evaluate(model, episodes=1, seed=1, video=video)
    fps, frames = read_video(tmp_path / "a.mp4")
    assert fps == 6 and len(frames) == LENGTH // 2 + 1  # that of the reset, too
    assert frames[0].mean() < frames[-1].mean()


def test_a_long_episode_is_noticed_once(monkeypatch, capsys):
    monkeypatch.setattr("cleanba.evaluation.evaluate.LONG_EPISODE", 5)
    evaluate(make_model(env_id="helpers.own_envs:Cue-v0"), episodes=4, seed=1)
    (line,) = capsys.readouterr().err.splitlines()
    assert line == ("episode 1 has lasted 5 steps; --env-options '{\"max_episode_steps\": …}' ends them")


def test_an_environment_without_images_is_refused(tmp_path):
    model = make_model(env_id="Catch-v0")
    with (
        pytest.raises(UsageError, match="Catch-v0 cannot be recorded"),
        recording(model, tmp_path / "a") as video,
    ):
        evaluate(model, episodes=1, seed=1, video=video)


def test_a_failed_video_is_reported_and_costs_no_evaluation(tmp_path):
    model = make_model()
    with recording(model, tmp_path / "nowhere" / "a.mp4") as video:
        result = evaluate(model, episodes=3, seed=1, video=video)
    assert result == evaluate(model, episodes=3, seed=1)
    assert "No such file or directory" in video.problem


def test_an_interrupted_video_leaves_an_existing_file_as_it_was(tmp_path):
    (tmp_path / "a.mp4").write_text("an earlier video")
    with pytest.raises(KeyboardInterrupt), Video(tmp_path / "a.mp4", fps=30) as video:
        for _ in range(100):
            video.add(BLACK)
        raise KeyboardInterrupt
    assert [path.read_text() for path in tmp_path.iterdir()] == ["an earlier video"]


def test_an_encoder_that_cannot_start_is_tried_once(tmp_path, monkeypatch):
    sizes = []

    def cannot_start(argv, **_):
        sizes.append(argv[argv.index("-s") + 1])
        raise OSError("not executable")

    monkeypatch.setattr(subprocess, "Popen", cannot_start)
    with Video(tmp_path / "a.mp4", fps=30) as video:
        for _ in range(3):
            video.add(BLACK)
    assert video.problem == "not executable" and sizes == ["448x448"]


@pytest.mark.timeout(30)
def test_a_video_can_be_interrupted_at_any_line(tmp_path):
    """As by Ctrl-C, whose exception comes between any two lines, also in the standard library."""
    lines, complete = 0, False

    def interrupt(frame, event, _):
        nonlocal left
        left -= event == "line"
        if not left:
            raise KeyboardInterrupt
        return interrupt

    while not complete:
        left = lines = lines + 1
        with suppress(KeyboardInterrupt), Video(tmp_path / "a.mp4", fps=30) as video:
            video.add(BLACK)
            sys.settrace(interrupt)
            try:
                video.add(BLACK)
            finally:
                sys.settrace(None)
            complete = True
    assert lines > 5 and (tmp_path / "a.mp4").exists()
