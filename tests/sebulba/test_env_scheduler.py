"""Which environments act next, with environments that become ready in whatever order the test likes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleanba.sebulba.env_scheduler import EnvScheduler


def mark_ready(scheduler, *env):
    scheduler.mark_ready(np.array(env, np.int32))


def test_environments_that_are_behind_go_first():
    scheduler = EnvScheduler(4, batch=2, first_step=0)
    mark_ready(scheduler, 2, 3)
    assert scheduler.next_batch(until=10).tolist() == [2, 3]
    mark_ready(scheduler, 3, 2)
    mark_ready(scheduler, 0, 1)  # only now
    assert scheduler.next_batch(until=10).tolist() == [0, 1]
    assert scheduler.next_batch(until=10).tolist() == [3, 2]  # in the order they became ready
    assert scheduler.step.tolist() == [1, 1, 2, 2]
    assert scheduler.completed == 0
    mark_ready(scheduler, 0, 1)
    assert scheduler.completed == 1  # 2 and 3 are on their way to 2
    mark_ready(scheduler, 2, 3)
    assert scheduler.completed == 1 and scheduler.all_ready


def test_no_environment_is_left_behind_alone():
    """Three steps each, and 0 is slow. The others could take all of theirs; then 0 would have two left, and
    nobody to make a batch of two with."""
    scheduler = EnvScheduler(4, batch=2, first_step=0)
    for ready in [(0, 1), (2, 3), (2, 3), (1, 3)]:
        mark_ready(scheduler, *ready)
        assert scheduler.next_batch(until=3).tolist() == list(ready)
    mark_ready(scheduler, 1, 2)  # left are 2 1 1 0
    assert scheduler.next_batch(until=3).tolist() == []
    mark_ready(scheduler, 3, 0)
    assert scheduler.next_batch(until=3).tolist() == [1, 0]
    mark_ready(scheduler, 1, 0)
    assert scheduler.next_batch(until=3).tolist() == [2, 0]
    mark_ready(scheduler, 2, 0)
    assert scheduler.next_batch(until=3).tolist() == [] and scheduler.all_ready and scheduler.completed == 3


def test_new_params_allow_more_steps():
    scheduler = EnvScheduler(2, batch=2, first_step=4)
    mark_ready(scheduler, 0, 1)
    assert scheduler.next_batch(until=4).tolist() == []
    assert scheduler.next_batch(until=5).tolist() == [0, 1]


def test_batches_must_fit():
    with pytest.raises(ValueError, match="5 environments do not come in batches of 2"):
        EnvScheduler(5, batch=2, first_step=0)


@given(st.data(), st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
def test_all_environments_finish_whichever_is_slow(data, batch, batches, horizon):
    """Those on their way come back in any order, more params come at any time: everyone reaches the end."""
    envs = batch * batches
    scheduler = EnvScheduler(envs, batch, first_step=0)
    under_way = list(range(envs))
    until, end = horizon, 3 * horizon
    while scheduler.completed < end:
        if until < end and data.draw(st.booleans()):
            until += horizon
        chosen = scheduler.next_batch(until)
        if len(chosen):
            assert len(set(chosen.tolist())) == batch and not set(chosen.tolist()) & set(under_way)
            under_way += chosen.tolist()
        elif scheduler.all_ready:
            assert scheduler.step.tolist() == [until] * envs, "stuck"
            until += horizon
        else:
            ready = data.draw(st.permutations(under_way))[:batch]
            assert len(ready) == batch, "too few are under way"
            under_way = [env for env in under_way if env not in ready]
            mark_ready(scheduler, *ready)
        assert scheduler.step.max() <= until
