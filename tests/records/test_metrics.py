"""Digests, and the writers of rows: metrics.jsonl, TensorBoard, the terminal."""

import json

import numpy as np
import pytest
from helpers.events import all_events, read_events
from rich.console import Console
from tensorboardX.record_writer import RecordWriter

from cleanba.cleanba_ppo import Args
from cleanba.config.batch_plan import BatchPlan
from cleanba.config.topology import Topology
from cleanba.records import terminal
from cleanba.records.digests import data_digest, digest, params_sums
from cleanba.records.run_folder import MetricsFile, rows_so_far
from cleanba.records.tensorboard_logger import TensorBoard
from cleanba.records.terminal import Terminal

ROW = {
    "update": 10,
    "global_step": 163_840,
    "seconds": 12.0,
    "charts/SPS_update": 9_000.0,
    "charts/SPS": 8_500.0,
    "charts/avg_episodic_return": 12.5,
    "charts/avg_episodic_length": 321.0,
    "losses/policy_loss": -0.01,
    "losses/entropy": 1.2,
    "stats/games": 100,
    "stats/update_seconds": 2.0,
    "stats/actor_environment_seconds": 2.0,  # an actor ahead of the learner: more than the update took
    "stats/actor_inference_seconds": 1.0,
    "stats/actor_waiting_seconds": 0.6,
    "stats/actor_total_seconds": 4.0,
    "stats/learner_learning_seconds": 1.5,
    "stats/learner_waiting_seconds": 0.5,
    "stats/learner_total_seconds": 2.0,
    "params_digest": "ab",
}


# ------------------------------------------------------------------------------------------------- digests


def test_the_params_digest_depends_on_every_bit_and_its_position():
    params = {"a": np.zeros(3, np.float32), "b": np.zeros(3, np.float32)}
    one, other = ({name: array.copy() for name, array in params.items()} for _ in range(2))
    one["a"].view(np.uint32)[1] ^= 1
    other["b"].view(np.uint32)[1] ^= 1
    assert len({digest(params_sums(p)) for p in (params, one, other)}) == 3
    assert params_sums(params) == params_sums({"b": params["b"], "a": params["a"]})


def test_the_data_digest_does_not_depend_on_how_environments_are_distributed():
    rng = np.random.default_rng(0)
    action, reward = rng.integers(0, 4, (5, 6), dtype=np.int32), rng.normal(size=(5, 6)).astype(np.float32)
    whole = data_digest([(np.arange(6), [action, reward])])
    parts = [
        (env_id, [action[:, env_id], reward[:, env_id]])
        for env_id in (np.array([4, 1]), np.array([0, 5, 2, 3]))
    ]
    assert data_digest(parts) == whole
    swapped = [array[:, [1, 0, 2, 3, 4, 5]] for array in (action, reward)]
    assert data_digest([(np.arange(6), swapped)]) != whole


# ------------------------------------------------------------------------------------------------- writers


def test_rows_are_written_immediately(tmp_path):
    writer = MetricsFile(tmp_path)
    writer.write(ROW)
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == ROW
    writer.close()


def test_numbers_that_json_does_not_have_become_null(tmp_path):
    writer = MetricsFile(tmp_path)
    writer.write({"update": 1, "losses/loss": float("nan"), "losses/entropy": float("-inf")})
    writer.close()
    text = (tmp_path / "metrics.jsonl").read_text()
    assert json.loads(text) == {"update": 1, "losses/loss": None, "losses/entropy": None}


def test_event_files_are_those_of_tensorboardx(tmp_path):
    writer = TensorBoard(tmp_path, frequency=1, updates=10, hyperparameters={"seed": 1})
    writer.write(ROW)
    writer.close()
    (path,) = tmp_path.iterdir()
    theirs = RecordWriter(str(tmp_path / "theirs"))
    for event in all_events(path):
        theirs.write(event.SerializeToString())
    theirs.close()
    assert path.read_bytes() == (tmp_path / "theirs").read_bytes()


def test_tensorboard_gets_every_nth_row_and_the_last(tmp_path):
    writer = TensorBoard(tmp_path, frequency=4, updates=10, hyperparameters={"seed": 1})
    for update in range(1, 11):
        writer.write(ROW | {"update": update, "global_step": update * 100})
    writer.close()
    events = read_events(tmp_path)
    assert [step for tag, step, _ in events if tag == "charts/SPS"] == [400, 800, 1000]
    tags = {tag for tag, _, _ in events}
    assert {"charts/avg_episodic_return", "losses/entropy", "stats/games"} <= tags
    assert not tags & {"params_digest", "global_step", "update"}


# ------------------------------------------------------------------------------------------------ terminal


def show(tmp_path, *, terminal, rows, width=80, before=()):
    args = Args()
    plan = BatchPlan.create(args, Topology((0,), (0,)))
    with (tmp_path / "out").open("w+") as file:
        console = Console(file=file, force_terminal=terminal, width=width)
        view = Terminal("a run", "where", plan, 10, np.array([1280, 1280]), console, before)
        for row in rows:
            view.write(row)
        view.close()
        return (tmp_path / "out").read_text()


def test_without_a_terminal_there_is_one_line_per_log_interval_and_one_for_the_first_row(tmp_path):
    rows = [ROW | {"update": update} for update in range(8, 22)]
    title, compiling, *lines = show(tmp_path, terminal=False, rows=rows).splitlines()
    assert title == "a run  ·  where" and compiling.startswith("compiling, ")
    assert [line.split(" | ")[0] for line in lines] == ["update 8/3051", "update 10/3051", "update 20/3051"]
    assert "return 12.50" in lines[0] and "8,500" in lines[0] and "1:37:42 left" in lines[0]


def test_a_return_that_was_not_finite_does_not_keep_a_run_from_being_shown_again(tmp_path):
    line = json.dumps(ROW | {"update": 7, "charts/avg_episodic_return": None})
    (tmp_path / "metrics.jsonl").write_text(f"{line}\n")
    before = rows_so_far(tmp_path)
    assert "a run" in show(tmp_path, terminal=True, rows=[ROW | {"update": 8}], before=before)


def test_a_slow_run_is_never_silent_for_long(tmp_path, monkeypatch):
    monkeypatch.setattr(terminal, "QUIET_SECONDS", 0)
    rows = [ROW | {"update": update} for update in range(11, 16)]
    lines = show(tmp_path, terminal=False, rows=rows).splitlines()[2:]
    assert [line.split("/")[0] for line in lines] == [f"update {update}" for update in range(11, 16)]


def test_the_live_view_shows_the_progress(tmp_path):
    view = show(tmp_path, terminal=True, rows=[ROW])
    for text in (
        "163,840 of 49,987,584 steps",
        "9,000 now, 8,500 since the first update",
        "12.50, length 321 (last 100 episodes)",
        "environment 50%, inference 25%, waiting 15%, other 10%",
        "learning 75%, waiting 25%",
        "1:37:42 left",
    ):
        assert text in view


def test_the_live_view_works_before_the_first_update(tmp_path):
    view = show(tmp_path, terminal=True, rows=[])
    assert "compiling" in view and "no episode finished yet" in view


def test_the_time_left_is_known_from_the_first_update_on(tmp_path):
    first = {name: value for name, value in ROW.items() if name != "charts/SPS"}
    assert "under 1:32:" in show(tmp_path, terminal=True, rows=[first])
    assert "under 1:32:16 left" in show(tmp_path, terminal=False, rows=[first])


def test_the_return_is_drawn(tmp_path):
    rows = [ROW | {"charts/avg_episodic_return": float(value)} for value in range(16)]
    assert "0 ▁▁▂▂▃▃▄▄▅▅▆▆▇▇██" in show(tmp_path, terminal=True, rows=rows)
    wide = show(tmp_path, terminal=True, rows=rows, width=160)
    assert "return over the run" in wide and "15 ▕              ▄█" in wide


def test_a_resumed_run_starts_where_it_was(tmp_path):
    view = show(tmp_path, terminal=True, rows=[], before=[ROW, ROW])
    assert "12.50, length 321" in view and "10 of 3,051" in view
    assert "50%" not in view and "time left not known yet" in view


@pytest.mark.parametrize(
    "name", ["seconds", "charts/avg_episodic_return", "charts/avg_episodic_length", "stats/games"]
)
@pytest.mark.parametrize("value", ["x", [1], {}, 10**400, None])
def test_an_odd_value_in_its_last_row_does_not_keep_a_run_from_being_shown(tmp_path, name, value):
    lines = [json.dumps(ROW | {"update": update}) + "\n" for update in (5, 6)]
    lines.append(json.dumps(ROW | {"update": 7, name: value}) + "\n")
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    for width in (80, 160):
        view = show(tmp_path, terminal=True, rows=[], width=width, before=rows_so_far(tmp_path))
        assert "7 of 3,051" in view and ("0:00:12 elapsed" in view) == (name != "seconds")


def test_there_is_no_live_view_when_nothing_is_left_to_train(tmp_path):
    view = show(tmp_path, terminal=True, rows=[], before=[ROW | {"update": 3051}])
    assert view == "a run  ·  where\n"
