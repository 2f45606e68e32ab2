"""Whose turn it is, with environments that come back in whatever order the test likes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cleanba.sebulba.turns import Turns


def arrive(turns, *env):
    turns.arrive(np.array(env, np.int32))


def test_those_who_are_behind_go_first():
    turns = Turns(4, batch=2, first_step=0)
    arrive(turns, 2, 3)
    assert turns.take(until=10).tolist() == [2, 3]
    arrive(turns, 3, 2)
    arrive(turns, 0, 1)  # only now
    assert turns.take(until=10).tolist() == [0, 1]
    assert turns.take(until=10).tolist() == [3, 2]  # in the order they came
    assert turns.step.tolist() == [1, 1, 2, 2]
    assert turns.done == 0
    arrive(turns, 0, 1)
    assert turns.done == 1  # 2 and 3 are on their way to 2
    arrive(turns, 2, 3)
    assert turns.done == 1 and turns.all_here


def test_nobody_is_left_behind_alone():
    """Three steps each, and 0 is slow. The others could take all of theirs; then 0 would have two left, and
    nobody to make a batch of two with."""
    turns = Turns(4, batch=2, first_step=0)
    for came in [(0, 1), (2, 3), (2, 3), (1, 3)]:
        arrive(turns, *came)
        assert turns.take(until=3).tolist() == list(came)
    arrive(turns, 1, 2)  # left are 2 1 1 0
    assert turns.take(until=3).tolist() == []
    arrive(turns, 3, 0)
    assert turns.take(until=3).tolist() == [1, 0]
    arrive(turns, 1, 0)
    assert turns.take(until=3).tolist() == [2, 0]
    arrive(turns, 2, 0)
    assert turns.take(until=3).tolist() == [] and turns.all_here and turns.done == 3


def test_more_params_are_more_to_do():
    turns = Turns(2, batch=2, first_step=4)
    arrive(turns, 0, 1)
    assert turns.take(until=4).tolist() == []
    assert turns.take(until=5).tolist() == [0, 1]


def test_batches_must_fit():
    with pytest.raises(ValueError, match="5 environments do not come in batches of 2"):
        Turns(5, batch=2, first_step=0)


@given(st.data(), st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
def test_all_get_there_whoever_is_slow(data, batch, batches, horizon):
    """Those on their way come back in any order, more params come at any time: everyone reaches the end."""
    envs = batch * batches
    turns = Turns(envs, batch, first_step=0)
    under_way = list(range(envs))
    until, end = horizon, 3 * horizon
    while turns.done < end:
        if until < end and data.draw(st.booleans()):
            until += horizon
        chosen = turns.take(until)
        if len(chosen):
            assert len(set(chosen.tolist())) == batch and not set(chosen.tolist()) & set(under_way)
            under_way += chosen.tolist()
        elif turns.all_here:
            assert turns.step.tolist() == [until] * envs, "stuck"
            until += horizon
        else:
            came = data.draw(st.permutations(under_way))[:batch]
            assert len(came) == batch, "too few are under way"
            under_way = [env for env in under_way if env not in came]
            arrive(turns, *came)
        assert turns.step.max() <= until
