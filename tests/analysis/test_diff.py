"""`cleanba diff`: identical runs, different runs, and folders that cannot be compared."""

import json
import shutil

import pytest

from cleanba import cleanba_diff, cleanba_impala

COMMAND = dict(total_timesteps=6 * 64)


@pytest.fixture
def diff(capsys):
    """Runs the command; returns its exit code and output."""

    def diff(*runs):
        with pytest.raises(SystemExit) as exit:
            cleanba_diff.main([str(run) for run in runs])
        captured = capsys.readouterr()
        return exit.value.code, captured.out + captured.err

    return diff


@pytest.fixture
def changed(run, tmp_path):
    """A run, and a copy of it whose rows were modified by `change`."""
    original = run(**COMMAND)[0].run_dir

    def changed(change):
        copy = shutil.copytree(original, tmp_path / "copy")
        rows = [json.loads(line) for line in (copy / "metrics.jsonl").read_text().splitlines()]
        change(rows)
        (copy / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return original, copy

    return changed


def test_the_same_command_twice(run, diff):
    code, output = diff(run(**COMMAND)[0].run_dir, run(**COMMAND)[0].run_dir)
    assert code == 0
    assert output.splitlines()[2:] == [
        "all recorded circumstances are the same",
        "identical through update 6",
    ]


def test_circumstances_that_differ_are_listed_first(run, diff):
    stepping = dict(env_stepping="sync", env_threads=1), dict(env_stepping="async", env_threads=2)
    runs = [run(**COMMAND, **flags, inference_batch=2)[0].run_dir for flags in stepping]
    code, output = diff(*runs)
    assert code == 0
    lines = [line.split() for line in output.splitlines()]
    assert lines[4:6] == [
        ["--env-stepping", "(changes", "no", "bit)", "sync", "async"],
        ["--env-threads", "(changes", "no", "bit)", "1", "2"],
    ]
    assert output.endswith("identical through update 6\n")


def test_another_seed_differs_from_the_first_update_on(run, diff):
    code, output = diff(run(**COMMAND)[0].run_dir, run(**COMMAND, seed=2)[0].run_dir)
    assert code == 1
    assert "--seed   1   2" in output
    assert output.index("--seed") < output.index("update 1 differs, in its data first")
    assert "losses/value_loss" in output and "seconds" not in output and "SPS" not in output


def test_the_learner_is_named_if_the_same_data_gave_different_params(changed, diff):
    def other_params(rows):
        for row in rows[3:]:
            row["params_digest"] = "0" * 16
        for row in rows[4:]:
            row["data_digest"] = "0" * 16
        rows[4]["losses/entropy"] += 0.25
        rows[5]["losses/entropy"] += 0.125

    code, output = diff(*changed(other_params))
    assert code == 1
    assert "all recorded circumstances are the same" in output
    assert "identical through update 3; update 4 differs, in its params first" in output
    assert output.splitlines()[-1].split() == ["losses/entropy", "0", "0.25", "5"]


def test_the_data_is_named_if_it_differs_in_the_same_update(changed, diff):
    def other_data(rows):
        rows[2] |= {"params_digest": "0" * 16, "data_digest": "0" * 16}

    assert "through update 2; update 3 differs, in its data first" in diff(*changed(other_data))[1]


def test_only_updates_that_both_runs_have_are_compared(changed, diff):
    def cut(rows):
        del rows[4:], rows[1]

    code, output = diff(*changed(cut))
    assert code == 0
    assert "B is missing 1 row, the first for update 2" in output
    assert output.endswith("identical through update 4; A continues to update 6\n")


def test_damaged_rows_are_ignored(changed, diff):
    def damage(rows):
        rows[0]["update"], rows[1]["update"], rows[2]["update"] = None, "2", [3]

    code, output = diff(*changed(damage))
    assert code == 0 and "B is missing 3 rows, the first for update 1" in output


def test_a_resumed_part_is_listed(run, diff):
    longer = dict(total_timesteps=7 * 64, anneal_lr=False)
    plain, other = (run(**COMMAND | dict(anneal_lr=False))[0].run_dir for _ in range(2))
    resumed = run(**longer, inference_batch=2, resume=str(plain))[0].run_dir
    code, output = diff(other, resumed)
    assert code == 0
    lines = [line.split() for line in output.splitlines()[2:]]
    assert lines[2:6] == [
        ["--total-timesteps", "384", "448"],
        ["--inference-batch", "-", "2"],
        ["part", "2:", "inference_batch", "-", "2"],
        ["part", "2:", "resumed", "after", "update", "-", "6"],
    ]
    assert "identical through update 6; B continues to update 7" in output


def test_what_cannot_be_compared_is_refused(run, diff, tmp_path):
    ppo = run(**COMMAND)[0].run_dir
    impala = run(**COMMAND, algorithm=cleanba_impala, num_minibatches=2)[0].run_dir
    smaller = run(**COMMAND, num_steps=8)[0].run_dir
    empty = shutil.copytree(ppo, tmp_path / "empty")
    (empty / "metrics.jsonl").write_text("")
    damaged = shutil.copytree(ppo, tmp_path / "damaged")
    (damaged / "args.json").write_text("{")
    record = json.loads((ppo / "args.json").read_text())
    changes = [
        {"parts": None},
        {"env_options": None},
        {"parts": [{"machine": None}]},
        {"digested": ["action"]},
    ]
    odd = [shutil.copytree(ppo, tmp_path / f"odd-{number}") for number in range(len(changes))]
    for folder, change in zip(odd, changes, strict=True):
        (folder / "args.json").write_text(json.dumps(record | change))
    for other, why in [
        (impala, "different algorithms"),
        (smaller, "different steps per update: 64 and 32"),
        (empty, "no complete update"),
        (damaged, "damaged args.json"),
        *((folder, "damaged args.json") for folder in odd[:3]),
        (odd[3], "different digests, made by different versions of Cleanba"),
        (tmp_path, "is not a run folder"),
    ]:
        code, output = diff(ppo, other)
        assert code == 2 and output.startswith("error: ") and why in output, output
