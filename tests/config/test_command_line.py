"""Command lines: values, and one clear line for what does not fit."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated

import pytest
import tyro

from cleanba import cleanba_diff
from cleanba.cleanba_ppo import Args
from cleanba.config.command_line import parse_command, whole_number
from cleanba.config.errors import UsageError
from cleanba.config.flag_hints import ALIASES, NOTES
from cleanba.config.flags import RunArgs, parse_args


def parse(line):
    return parse_args(Args(), prog="cleanba ppo", description="", argv=line.split())


@dataclass(frozen=True)
class Eval:
    model: Annotated[str, tyro.conf.Positional]
    """a model"""
    episodes: int = 10
    """how many"""
    greedy: bool = False
    """whether"""


def parse_eval(*argv):
    return parse_command(Eval, prog="cleanba eval", description="", argv=list(argv))


@pytest.mark.parametrize(
    ("text", "number"),
    [("7", 7), ("-1", -1), ("1e6", 10**6), ("2.5e-1e", None), ("1_000", 1000), ("200k", 200_000)]
    + [("1.5M", 1_500_000), ("10m", 10**7)]
    + [("1e-3", None), ("0.5", None), ("1,000", None), ("", None), ("nan", None)]
    + [("1e999999999", None), ("inf", None), ("ten", None), ("9007199254740993", 2**53 + 1)],
)
def test_whole_numbers(text, number):
    if number is not None:
        assert whole_number(text) == number
        return
    with pytest.raises(ValueError):
        whole_number(text)


def test_every_int_flag_takes_scientific_notation():
    args = parse("--total-timesteps 1e6 --hiddens 1e2 64 --frame-stack 4 --seed=3")
    assert (args.total_timesteps, args.hiddens, args.frame_stack, args.seed) == (10**6, (100, 64), 4, 3)
    assert parse("--frame-stack None").frame_stack is None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--lr 1e-3", "there is no flag --lr; did you mean --learning-rate?"),
        ("--num_envs 8", "there is no flag --num_envs; did you mean --local-num-envs? It counts"),
        ("--timesteps=5", "there is no flag --timesteps; did you mean --total-timesteps?"),
        ("--env Pong-v5", "there is no flag --env; did you mean --env-id?"),
        ("--gpu 0", "did you mean --learner-device-ids? --actor-device-ids choose actions"),
        ("--batch-size 32", "did you mean --num-minibatches? A batch is"),
        ("--gama 0.9", "there is no flag --gama; did you mean --gamma?"),
        ("--blah", "there is no flag --blah; cleanba ppo --help lists all"),
        ("--no-seed", "there is no flag --no-seed; did you mean --seed?"),
        ("--seed x", "--seed x is not a whole number"),
        ("--seed", "--seed needs a value: --seed INT"),
        ("--seed --track", "--seed needs a value"),
        ("--hiddens 64 x", "--hiddens x is not a whole number"),
        ("--learning-rate fast", "--learning-rate fast is not a number"),
        ("--network lstm", "--network lstm is not one of auto, impala, nature, mlp"),
        (
            "--capture-video True",
            "--capture-video takes no value; give --capture-video or --no-",
        ),
        ("Pong-v5", "'Pong-v5' belongs to no flag; an environment is given by --env-id"),
        ("--seed 1 2", "'2' after --seed belongs to no flag"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(line, message):
    with pytest.raises(UsageError) as refusal:
        parse(line)
    assert str(refusal.value).startswith(message) or message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_what_belongs_to_no_flag_is_positional():
    assert parse_eval("runs/x", "--greedy", "--episodes", "3") == Eval("runs/x", 3, True)
    assert parse_eval("--no-greedy", "runs/x") == Eval("runs/x")
    with pytest.raises(UsageError, match="cleanba eval needs a model"):
        parse_eval("--episodes", "3")
    with pytest.raises(UsageError, match="^cleanba diff needs 2 run folders$"):
        parse_command(cleanba_diff.Args, argv=["x"], prog="cleanba diff", description="")
    with pytest.raises(UsageError, match="unexpected argument 'y'; "):
        parse_eval("x", "y")


def test_help_says_a_default_once_and_never_None(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit, match="0"):
        parse("--help")
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) == 80
    assert "None" not in shown
    for flag in shown.split("│ --")[1:]:
        assert flag.count("default:") == 1, flag


def test_aliases_name_flags_that_exist():
    names = {field.name for field in dataclasses.fields(Args)} | {"episodes", "greedy"}
    assert ALIASES.keys() <= names and NOTES.keys() <= names
    of_all = {field.name for field in dataclasses.fields(RunArgs)}
    assert not of_all & {alias for aliases in ALIASES.values() for alias in aliases.split()}
