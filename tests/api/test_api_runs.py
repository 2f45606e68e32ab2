"""`cleanba.runs`, and rows as arrays."""

import shutil

import numpy as np
import pytest
from helpers.runs import REPO, run_python

import cleanba
from cleanba.records.columns import as_columns

OLD_RUN = REPO / "tests/records/data/old_run"


@pytest.fixture
def folder(tmp_path):
    """A finished run, and a newer one that was stopped."""
    shutil.copytree(OLD_RUN, tmp_path / "deeper/a__b__1__1700000000")
    shutil.copytree(OLD_RUN, tmp_path / "a__b__1__1700000001")
    (tmp_path / "a__b__1__1700000001/finished.json").unlink()
    (tmp_path / "nothing").mkdir()
    return tmp_path


def test_runs_are_records_with_rows_on_demand(folder):
    first, second = cleanba.runs(folder)
    assert (first.status, first.step, first.updates, first.resume) == ("finished", 64, 2, None)
    assert second.status == "stopped" and second.resume == f"cleanba ppo --resume {second.folder}"
    assert np.isnan(first.score) and np.isnan(first.evaluation) and first.flags["seed"] == 1
    assert first.rows["update"].tolist() == [1, 2]
    flat = first.as_dict()
    assert flat["env_id"] == "Breakout-v5" and flat["status"] == "finished" and "flags" not in flat


def test_runs_in_any_state_are_listed(folder):
    (folder / "empty").mkdir()
    (folder / "empty/args.json").write_text("{")
    states = {run.folder.name: run.status for run in cleanba.runs(str(folder))}
    assert states["empty"] == "damaged" and len(states) == 3
    assert cleanba.runs(folder / "nothing") == []
    with pytest.raises(cleanba.UsageError, match="runs-2 is not a folder; give the folder of runs"):
        cleanba.runs(folder / "runs-2")


def test_columns_have_an_entry_per_update():
    columns = as_columns(
        [
            dict(update=1, x=1.5, n=3, digest="a"),
            dict(update=2, x=None, n=4, digest="b", late=1.0),
            dict(update=3, x=2.5, n=5, digest="lost"),
            {},
            dict(update=3, x=3.5, n=6, digest="c"),
            dict(global_step=3, **{"eval/episodic_return": 1.0}),
        ]
    )
    assert columns["update"].tolist() == [1, 2, 3] and columns["n"].tolist() == [3, 4, 6]
    assert np.array_equal(columns["x"], [1.5, np.nan, 3.5], equal_nan=True)
    assert np.array_equal(columns["late"], [np.nan, 1.0, np.nan], equal_nan=True)
    assert columns["digest"].tolist() == ["a", "b", "c"] and set(columns) == {
        "update",
        "x",
        "n",
        "digest",
        "late",
    }


def test_damaged_values_are_missing_ones():
    """Whole numbers may have any number of digits in a file, and anything may stand for a number."""
    good = dict(update=1, x=1.0, n=1, most=2**63 - 1, digest="a", both=1)
    odd = dict(update=2, x=10**400, n=2**63, most=-(2**63), digest=10**400, both="b")
    columns = as_columns([good, odd, good | dict(update=3)])
    for name, values in dict(x=[1, np.nan, 1], n=[1, np.nan, 1], both=[1, np.nan, 1]).items():
        assert columns[name].dtype == np.float64 and np.array_equal(columns[name], values, equal_nan=True)
    assert columns["most"].dtype == np.int64 and columns["most"].tolist() == [2**63 - 1, -(2**63), 2**63 - 1]
    assert columns["digest"].tolist() == ["a", "", "a"]


@pytest.mark.parametrize("update", [10**400, 10**16, 0, -3, True])
def test_a_row_of_an_impossible_update_is_a_damaged_line(update):
    columns = as_columns([dict(update=1), dict(update=update), dict(update=2), dict(update=update)])
    assert columns["update"].tolist() == [1, 2]


def test_importing_it_and_listing_runs_needs_no_jax(folder):
    script = f"""
import sys, cleanba
assert not {{"jax", "numpy", "gymnasium", "rich"}} & set(sys.modules), sorted(sys.modules)
assert len(cleanba.runs({str(folder)!r})) == 2 and "jax" not in sys.modules
assert set(cleanba.__all__) <= set(dir(cleanba))
"""
    done = run_python(folder, "-c", script)
    assert done.returncode == 0, done.stderr


def test_every_name_is_there():
    assert all(getattr(cleanba, name).__name__ == name for name in cleanba.__all__)
    with pytest.raises(AttributeError, match="module 'cleanba' has no attribute 'trian'"):
        _ = cleanba.trian
    assert (REPO / "cleanba/py.typed").exists()
