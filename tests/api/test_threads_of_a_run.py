"""What keeps an eye on the threads of a run, and waits for them."""

import atexit
import os
import threading
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from cleanba.training import threads as module
from cleanba.training.threads import Channels, ThreadGroup, start_thread


@pytest.fixture
def group():
    """Of a run that makes no progress."""
    learner = SimpleNamespace(chunks_done=0, abandoned=False)
    group = ThreadGroup(
        channels=Channels.create(actors=1, lag=0),
        loop=SimpleNamespace(learner=learner),
        actors=[],
        progress=np.zeros(1),
        stuck_seconds=0.2,
        key=np.zeros(2),
        threads=[],
        patient=threading.Event(),
        ended=threading.Event(),
    )
    yield group
    group.channels.close()
    group.ended.set()


def watched(group):
    """A job that ends the run when it is lost, as a real one does."""
    pings, lost = [], []

    def lose(why, stuck):
        lost.append(why)
        group.channels.close()

    job = SimpleNamespace(process=0, processes=1, ping=pings.append, straggler=lambda steps: "", lose=lose)
    thread = threading.Thread(target=group.watch, args=(job,))
    thread.start()
    return thread, pings, lost


def test_a_run_that_makes_no_progress_is_ended(group):
    thread, _, lost = watched(group)
    thread.join(60)
    assert lost == ["the run has made no progress for 0.2 s"]


def test_a_run_that_cannot_be_ended_is_given_up(group):
    """All is done, or it was asked to stop, but the main thread does not come back."""
    group.channels.close()
    thread, pings, lost = watched(group)
    thread.join(60)
    assert lost == ["the run has not ended within 0.2 s"] and not pings


def test_a_run_that_has_ended_is_not_watched(group):
    group.ended.set()
    thread, _, lost = watched(group)
    thread.join(60)
    assert not lost


def test_a_slow_callback_does_not_count_as_being_stuck(group):
    with group.patiently():
        thread, pings, lost = watched(group)
        while len(pings) < 20 and thread.is_alive():  # twenty looks, five of which would be patience
            thread.join(0.01)
        assert not lost
    thread.join(60)
    assert len(lost) == 1


def test_the_users_callback_takes_as_long_as_it_likes_and_so_does_what_comes_after_the_training(
    train, monkeypatch
):
    called = []

    @contextmanager
    def patiently(self):
        called.append("begin")
        yield
        called.append("end")

    monkeypatch.setattr(ThreadGroup, "patiently", patiently)
    train(on_update=lambda row: called.append(row["update"]))
    callbacks = [x for update in range(1, 6) for x in ("begin", update, "end")]
    assert called == [*callbacks, "begin", "end"]


def test_what_is_inside_a_device_program_is_waited_for_at_the_exit(group, monkeypatch):
    monkeypatch.setattr(module, "JOIN_SECONDS", 0.01)
    monkeypatch.setattr(atexit, "register", lambda *call: waited.append(call))
    waited, program = [], threading.Event()
    group.threads.extend([start_thread("learner", program.wait, group.channels)])
    group.join()
    assert group.loop.learner.abandoned and waited == [(group.threads[0].join, module.EXIT_SECONDS)]
    program.set()
    group.threads[0].join(60)


def test_a_run_leaves_no_file_open(train):
    training = train()
    opened = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    assert not [path for path in opened if path.startswith(str(training.folder.resolve()))]
