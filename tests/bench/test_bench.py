"""`cleanba bench`: a small benchmark from end to end, and its flags."""

import dataclasses
import json
from types import SimpleNamespace

import pytest

from cleanba import cleanba_bench, cleanba_impala, cleanba_ppo
from cleanba.bench.measure import Bench
from cleanba.config.errors import UsageError

SMALL = "--env-id CartPole-v1 --local-num-envs 4 --num-actor-threads 1 --num-steps 8 --hiddens 16"
QUICK = "--seconds 0.1 --repeats 1 --train-seconds 0.4 --tune --tune-minutes 0.05"


def test_a_small_benchmark(tmp_path, capsys):
    cleanba_bench.main(["impala", *SMALL.split(), *QUICK.split(), "--out", str(tmp_path)])
    output = capsys.readouterr().out
    record = json.loads((tmp_path / "bench.json").read_text())
    parts = record["parts"]
    assert list(parts) == ["ceiling", "environments", "inference", "learning", "copies", "training"]
    for part in parts.values():
        assert part["label"] in output and f"{part['steps_per_second']:,.0f}" in output
        assert min(part["rates"]) > 0
    assert parts["ceiling"]["steps_per_second"] >= parts["environments"]["steps_per_second"]
    assert parts["training"]["steps_per_second"] < parts["ceiling"]["steps_per_second"]
    assert parts["learning"]["how"].startswith(f"{len(parts['learning']['rates'])} × ")
    assert record["bottleneck"] in output and record["tune"]["advice"] in output
    assert record["machine"]["cores"] and record["plan"]["batch_size"] == 32
    assert record["command"].startswith("cleanba bench impala --env-id CartPole-v1")
    assert (tmp_path / "bench.png").stat().st_size > 20_000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bench.json", "bench.png"]


def test_measurements_are_saved_before_tuning(tmp_path, monkeypatch):
    def interrupted(*_, **__):
        record = json.loads((tmp_path / "bench.json").read_text())
        assert record["parts"]["training"]["steps_per_second"] > 0 and (tmp_path / "bench.png").exists()
        raise UsageError("as if by Ctrl-C")

    monkeypatch.setattr(cleanba_bench, "tune_run", interrupted)
    with pytest.raises(SystemExit):
        cleanba_bench.main(["impala", *SMALL.split(), *QUICK.split(), "--out", str(tmp_path)])
    assert json.loads((tmp_path / "bench.json").read_text())["tune"] is None


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--track", "--track is not supported by cleanba bench; leave it out"),
        ("impala --resume auto", "--resume is not supported"),
        ("--distributed", "--distributed is not supported"),
        ("ppo --seconds 0", "--seconds 0.0 is too small"),
        ("--out /dev/null", "--out /dev/null cannot be written"),
        ("sac", "there is no algorithm 'sac'; give ppo, impala or a .py file"),
        ("--env-id Brekout-v5", "did you mean Breakout"),
    ],
)
def test_bad_input_is_refused_at_once(argv, message, capsys):
    with pytest.raises(SystemExit) as exit:
        cleanba_bench.main(argv.split())
    assert exit.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and message in line


@pytest.mark.parametrize(("argv", "defaults"), [("--help", "cleanba_ppo)"), ("impala -h", "cleanba_impala)")])
def test_help_has_the_flags_of_both(argv, defaults, capsys):
    with pytest.raises(SystemExit) as exit:
        cleanba_bench.main(argv.split())
    output = capsys.readouterr().out
    assert exit.value.code == 0
    for text in (
        "ppo",
        "impala",
        "bench FILE.py",
        "bench options",
        "--tune-minutes",
        "--gradient-chunk",
        defaults,
    ):
        assert text in output


def test_the_training_flags_are_those_of_the_algorithm():
    own = {field.name for field in dataclasses.fields(Bench)}
    for theirs in (cleanba_ppo.Args(), cleanba_impala.Args()):
        ours = cleanba_bench.bench_args(type(theirs))
        assert {name: value for name, value in vars(ours).items() if name not in own} == vars(theirs)


def test_a_file_with_arguments_of_its_own_is_measured_with_them():
    own = cleanba_ppo.Args(num_steps=7)
    for given in (own, lambda: own):
        found = cleanba_bench.default_args(SimpleNamespace(Args=cleanba_ppo.Args, ARGS=given))
        assert (found.num_steps, found.train_seconds) == (7, Bench().train_seconds)
