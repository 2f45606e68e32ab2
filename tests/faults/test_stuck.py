"""A main thread that does not come back, from a writer or a disk: the run leaves, with what can be kept."""

import signal
import threading
from contextlib import nullcontext

import pytest
from helpers.leftovers import joined_threads

from cleanba.distributed import job
from cleanba.records import checkpoint
from cleanba.records.tensorboard_logger import TensorBoard
from cleanba.runtime.command import CleanExit
from cleanba.runtime.signals import Stopped, handle_signals
from cleanba.training.threads import LearnerLoop, ThreadGroup

PATIENCE = 1.0  # once it is stuck; before that, a busy machine compiles


@pytest.fixture
def stick(monkeypatch, tmp_path):
    """Makes a function stick at its call number `moment`, until the process would exit; then it goes on, so
    that the test can end. Returns the exit code, and what was saved when the process would have exited."""
    left, exits, patience = threading.Event(), [], [600.0]

    def leave(code):
        exits.append((code, sorted(path.stem for path in tmp_path.glob("*/checkpoints/*.safetensors"))))
        left.set()

    def stick(owner, name, moment=1):
        method, calls = getattr(owner, name), []

        def sticking(*args):
            calls.append(args)
            if len(calls) == moment:
                patience[0] = PATIENCE
                assert left.wait(60)
            return method(*args)

        monkeypatch.setattr(owner, name, sticking)
        return exits

    monkeypatch.setattr(ThreadGroup, "stuck_seconds", property(lambda group: patience[0]))
    monkeypatch.setattr(job, "hard_exit", leave)
    monkeypatch.setattr(job, "SAVE_SECONDS", 0.1)
    with joined_threads():
        yield stick


def stop_at(monkeypatch, update):
    """Ask for the end while this update's row is written."""
    write, stop, heard = TensorBoard.write, ThreadGroup.stop, threading.Event()

    def stopping(*args):
        stop(*args)
        heard.set()

    def asking(events, row):
        if row["update"] == update:
            signal.raise_signal(signal.SIGUSR1)
            assert heard.wait(60)
        write(events, row)

    monkeypatch.setattr(ThreadGroup, "stop", stopping)
    monkeypatch.setattr(TensorBoard, "write", asking)


def test_another_thread_saves_if_the_main_thread_is_stuck_in_a_writer(run, stick, capsys):
    exits = stick(TensorBoard, "write", 3)
    with pytest.raises(CleanExit, match="no progress"):
        run(total_timesteps=20 * 64)  # too many for the learner to complete them meanwhile
    assert exits == [(1, ["update-3"])]
    says = f"error: the run has made no progress for {PATIENCE:g} s\nlost: "
    assert says in (said := capsys.readouterr().err)
    assert "steps since the checkpoint of update 3; `cleanba ppo --resume " in said


def test_a_run_that_was_asked_to_stop_does_not_wait_for_a_writer_that_is_stuck(
    run, stick, monkeypatch, capsys
):
    exits = stick(TensorBoard, "write", 3)
    stop_at(monkeypatch, 3)
    with handle_signals([signal.SIGUSR1]), pytest.raises(Stopped):
        run()
    assert exits == [(75, ["update-3"])]
    says = f"error: the run has not ended within {PATIENCE:g} s\nlost: "
    assert says in (said := capsys.readouterr().err)
    assert "steps since the checkpoint of update 3; `cleanba ppo --resume " in said


@pytest.mark.parametrize("stop", [True, False])
def test_a_last_checkpoint_that_is_stuck_ends_the_run_as_failed(run, stick, monkeypatch, capsys, stop):
    """Also where nobody asked the run to stop."""
    monkeypatch.setattr(job, "RESCUE_SECONDS", 0.1)
    exits = stick(checkpoint, "atomic_write")
    if stop:
        stop_at(monkeypatch, 3)
    with handle_signals([signal.SIGUSR1]), pytest.raises(Stopped) if stop else nullcontext():
        run()
    assert exits == [(1, [])]
    says = f"error: the run has not ended within {PATIENCE:g} s\nlost: what came after the newest checkpoint"
    assert says in capsys.readouterr().err


def test_what_hangs_while_it_closes_finds_the_checkpoint_and_makes_no_second_folder(
    run, stick, monkeypatch, tmp_path
):
    exits = stick(TensorBoard, "close")
    stop_at(monkeypatch, 3)
    with handle_signals([signal.SIGUSR1]), pytest.raises(Stopped):
        run()
    assert exits == [(75, ["update-3"])]
    assert len(list(tmp_path.iterdir())) == 1


def test_what_ended_the_run_is_not_hidden_by_what_hangs_then(run, stick, monkeypatch, capsys):
    publish = LearnerLoop.publish

    def failing(loop, updates, published):
        if updates == 3:
            raise ValueError("the emulator caught fire")
        publish(loop, updates, published)

    stick(checkpoint, "atomic_write")
    monkeypatch.setattr(LearnerLoop, "publish", failing)
    with pytest.raises(CleanExit, match="ending because of ValueError: the emulator caught fire"):
        run()
    assert "ending because of ValueError: the emulator caught fire" in capsys.readouterr().err
