"""Resuming writes to regular files of one's own only, and takes nothing from a file on trust."""

import json
import os
from contextlib import closing
from types import SimpleNamespace

import pytest
from helpers.resuming import resume, resume_auto
from helpers.runs import edit_args, read_args

import cleanba
from cleanba import cleanba_ppo
from cleanba.config.errors import UsageError
from cleanba.records.checkpoint import saved_bytes
from cleanba.records.run_folder import InUse, MetricsFile, checkpoint_updates, read_rows

NEWEST = "checkpoints/update-4.safetensors"


@pytest.mark.parametrize("name", ["metrics.jsonl", "checkpoints", "wandb", "profile"])
def test_a_link_in_place_of_what_is_written_to_is_refused(killed, tmp_path, name):
    elsewhere = tmp_path / "elsewhere"
    if (killed / name).exists():
        (killed / name).rename(elsewhere)
    (killed / name).symlink_to(elsewhere)
    before = elsewhere.read_bytes() if elsewhere.is_file() else None
    with pytest.raises(UsageError, match=f"{name} (cannot be written .it is a link|is a link; put)"):
        resume(killed)
    assert before is None or elsewhere.read_bytes() == before


def test_a_backup_of_hard_links_keeps_its_rows(killed, tmp_path):
    """As `cp -al` and `rsync --link-dest` make it."""
    backup = tmp_path / "backup.jsonl"
    os.link(killed / "metrics.jsonl", backup)
    before = backup.read_bytes()
    for path in (killed / "checkpoints").glob("update-[34].*"):
        path.unlink()
    with closing(MetricsFile(killed)) as file:
        file.cut_after(2)
        with pytest.raises(InUse):
            MetricsFile(killed)
    assert backup.read_bytes() == before
    assert [row["update"] for row in read_rows(killed)] == [1, 2]


def test_a_run_of_hard_links_on_a_full_disk_is_refused_and_not_left_locked(killed, tmp_path, monkeypatch):
    def full(path, data):
        raise OSError(28, "No space left on device")

    os.link(killed / "metrics.jsonl", tmp_path / "backup.jsonl")
    with monkeypatch.context() as patch:
        patch.setattr("cleanba.runtime.files.atomic_write", full)
        with pytest.raises(UsageError, match=r"cannot be copied \(No space left on device\)"):
            MetricsFile(killed)
    MetricsFile(killed).close()


def test_links_in_place_of_results_are_replaced_and_not_followed(killed, tmp_path):
    names = [
        "args.json",
        "evaluation.json",
        "learning_curve.png",
        "finished.json",
        "cleanba_ppo.cleanrl_model",
    ]
    names += [f"{name}.unfinished" for name in names]
    for name in names:
        (tmp_path / f"own-{name}").write_text("my own")
        if name != "args.json":
            (killed / name).unlink(missing_ok=True)
            (killed / name).symlink_to(tmp_path / f"own-{name}")
    (killed / "finished.json").unlink()
    cleanba_ppo.main(argv=["--resume", str(killed), "--save-model"])
    assert {(tmp_path / f"own-{name}").read_text() for name in names} == {"my own"}
    assert not any(path.is_symlink() for path in killed.iterdir())
    assert json.loads((killed / "evaluation.json").read_text())["env_id"] == "CartPole-v1"


def test_the_folder_of_another_user_is_not_resumed(killed, monkeypatch, capsys):
    monkeypatch.setattr("cleanba.records.resume.is_own_folder", lambda folder: False)
    with pytest.raises(UsageError, match="belongs to another user; resume a copy of it"):
        resume(killed)
    assert resume_auto(killed).previous is None
    assert "not resumed: " in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files away")
@pytest.mark.parametrize("name", ["", "args.json", "metrics.jsonl", "checkpoints", NEWEST])
def test_what_belongs_to_another_user_is_not_resumed(killed, name):
    for path in (killed / "checkpoints").glob("update-[123].*"):
        path.unlink()
    os.chown(killed / name, 65534, -1)
    with pytest.raises(UsageError, match="belongs to another user"):
        resume(killed)


def test_checkpoints_that_no_run_writes_are_passed_over(killed):
    (killed / "checkpoints/update-9.safetensors").symlink_to("nowhere")
    (killed / "checkpoints/update-007.safetensors").write_text("")
    assert checkpoint_updates(killed)[0] == 9 and saved_bytes(killed) > 0
    assert resume(killed).update == 4


def test_options_and_layers_without_end_are_refused(killed):
    edit_args(killed, env_options="[" * 100_000)
    with pytest.raises(UsageError, match="is not JSON"):
        resume(killed)
    edit_args(killed, env_options="{}", hiddens=[8] * 100_000)
    with pytest.raises(UsageError, match="--hiddens has 100000 values; give at most 64"):
        resume(killed)


@pytest.mark.parametrize("name", ["metrics.jsonl", "args.json", NEWEST])
@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_a_fifo_or_a_device_is_not_waited_for(killed, name, kind):
    for path in (killed / "checkpoints").glob("update-[123].*"):
        path.unlink()
    (killed / name).unlink()
    os.mkfifo(killed / name) if kind == "fifo" else (killed / name).symlink_to("/dev/zero")
    with pytest.raises(UsageError, match="it is not a regular file|it is a link, not a file"):
        resume(killed)


def test_an_unreadable_newest_checkpoint_does_not_block_the_others(killed, capsys):
    (killed / NEWEST).unlink()
    os.mkfifo(killed / NEWEST)
    assert resume(killed).update == 3
    assert "update-4.safetensors cannot be read: it is not a regular file; using" in capsys.readouterr().err
    assert (killed / "checkpoints/update-4.unreadable").exists()


def test_a_checkpoint_of_another_run_is_refused(killed, capsys):
    record = read_args(killed)
    record["run_id"] = "another"
    (killed / "args.json").write_text(json.dumps(record))
    with pytest.raises(UsageError, match=r"no checkpoint to resume from; \d are damaged and were set aside"):
        resume(killed)
    assert "it belongs to another run" in capsys.readouterr().err


def test_a_record_without_an_id_takes_any_checkpoint(killed):
    """Of an earlier version."""
    record = read_args(killed)
    del record["run_id"]
    (killed / "args.json").write_text(json.dumps(record))
    assert resume(killed).update == 4


@pytest.mark.parametrize(
    "change",
    [
        dict(seed="1"),
        dict(seed=1.5),
        dict(seed=True),
        dict(gamma="high"),
        dict(gamma=None),
        dict(gamma=[0.9]),
        dict(hiddens=16),
        dict(hiddens=["16"]),
        dict(hiddens={"a": 1}),
        dict(network="huge"),
        dict(network=["mlp"]),
        dict(env_id=7),
        dict(exp_name="\x1b[2J", env_id=None),
        dict(concurrency="yes"),
        dict(concurrency=1),
        dict(num_steps=None),
        dict(inference_batch="2"),
        dict(total_timesteps=1e6),
        dict(runs_dir=None),
        dict(learner_device_ids=[[0]]),
    ],
    ids=str,
)
def test_a_flag_of_the_wrong_type_in_args_json_is_named(killed, change):
    edit_args(killed, **change)
    with pytest.raises(UsageError, match=r"has a damaged args.json: --[a-z-]+ cannot be"):
        resume(killed)


@pytest.mark.parametrize("change", [dict(total_timesteps=10**21), dict(num_steps=10**30)], ids=str)
def test_a_number_that_nothing_can_count_to_is_refused(killed, change):
    edit_args(killed, **change)
    with pytest.raises(UsageError, match="1e.* is too large; give at most"):
        resume(killed)


@pytest.mark.parametrize(
    "changes", [dict(plan={"num_envs": 0}), dict(plan={"num_envs": True}), dict(run_id=7)]
)
def test_a_record_with_impossible_values_is_damaged(killed, changes):
    (killed / "args.json").write_text(json.dumps(read_args(killed) | changes))
    with pytest.raises(UsageError, match="has a damaged args.json"):
        resume(killed)


def test_odd_rows_do_not_end_a_resume(killed):
    odd = [{"update": "1"}, {"update": None, "global_step": "x"}, {"global_step": []}, {"update": -3}]
    with (killed / "metrics.jsonl").open("a") as file:
        file.writelines(f"{json.dumps(row)}\n" for row in odd)
    cleanba_ppo.main(argv=["--resume", str(killed)])
    assert [row["update"] for row in read_rows(killed)] == list(range(1, 11))


def test_odd_values_in_the_rows_that_are_kept_do_not_end_a_resume(killed, monkeypatch):
    """Neither in the terminal, which goes on from the last, nor where they are sent to."""
    recent, length = "charts/avg_episodic_return", "charts/avg_episodic_length"
    odd = [
        {"global_step": "x"},
        {recent: [1], "losses/loss": {}},
        {recent: 10**400, "global_step": 128.5},
        {recent: 10**30, length: "x", "seconds": "x", "stats/games": None, "losses/loss": "x"},
    ]
    rows = map(json.loads, (killed / "metrics.jsonl").read_text().splitlines()[: len(odd)])
    lines = [json.dumps(row | changes) + "\n" for row, changes in zip(rows, odd, strict=True)]
    (killed / "metrics.jsonl").write_text("".join(lines))
    sent = {}
    tracked = SimpleNamespace(offline=True, disabled=False, id="ab12", dir=str(killed / "wandb/x"))
    monkeypatch.setattr("wandb.setup", lambda: SimpleNamespace(settings=SimpleNamespace(mode="offline")))
    monkeypatch.setattr("wandb.init", lambda **_: tracked)
    monkeypatch.setattr("wandb.log", lambda row, step, commit: sent.update({step: row}))
    monkeypatch.setattr("wandb.finish", lambda exit_code: None)
    cleanba.train("ppo", resume=str(killed), track=True, log_frequency=1)
    assert list(sent) == [64 * update for update in (2, *range(4, 11))]
    assert {recent, "losses/loss", "losses/entropy"} & sent[2 * 64].keys() == {"losses/entropy"}
    assert [row["update"] for row in read_rows(killed)] == list(range(1, 11))
