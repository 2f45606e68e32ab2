"""Flags of an algorithm's own: fields of its Args, with marks where they stand."""

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pytest

from cleanba import cleanba_impala, cleanba_ppo
from cleanba.config.errors import UsageError
from cleanba.config.flags import RunArgs, check_ranges, check_types, parse_args
from cleanba.config.marks import (
    CAN_CHANGE,
    CHANGES_NO_BIT,
    NOT_NEGATIVE,
    ONLY_LOGS,
    POSITIVE,
    Range,
    marked,
    marks_of,
)


@dataclass(frozen=True)
class Args(RunArgs):
    num_steps: int = 7  # another default for a flag of the engine's
    temperature: float = 0.0
    """what divides the logits"""
    depth: Annotated[int, POSITIVE] = 2
    """layers"""
    trace: Annotated[bool, ONLY_LOGS] = False


def parse(*argv):
    return parse_args(Args(), prog="test", description="", argv=list(argv))


def test_a_field_is_a_flag_with_its_help(capsys):
    assert parse("--temperature", "-0.5", "--depth", "3") == Args(temperature=-0.5, depth=3)
    with pytest.raises(SystemExit):
        parse("--help")
    shown = " ".join(capsys.readouterr().out.split())
    assert "algorithm options" in shown and "what divides the logits" in shown and "layers" in shown


def test_a_number_without_a_range_may_be_anything_finite():
    check_ranges(Args(temperature=0.0))
    check_ranges(Args(temperature=-3.0))
    with pytest.raises(UsageError, match="--temperature nan is not finite"):
        check_ranges(Args(temperature=math.nan))
    with pytest.raises(UsageError, match="--depth 0 is too small; give a number above 0"):
        check_ranges(Args(depth=0))


def test_another_default_keeps_the_marks():
    assert marks_of(Args)["num_steps"] == marks_of(RunArgs)["num_steps"] == (POSITIVE,)
    with pytest.raises(UsageError, match="--num-steps 0 is too small"):
        check_ranges(Args(num_steps=0))


def test_what_a_resumed_run_may_change():
    """The lists are written out here once, so that a lost mark shows."""
    layout = {"actor_device_ids", "learner_device_ids", "num_actor_threads", "local_num_envs"}
    layout |= {"env_stepping", "env_threads", "inference_batch", "deterministic"}
    layout |= {"gradient_chunk", "gradient_accumulation_steps", "total_timesteps"}
    assert marked(RunArgs, CAN_CHANGE) == layout
    logs = {"log_frequency", "runs_dir", "profile", "distributed", "join_seconds", "stuck_seconds"}
    logs |= {"checkpoint_minutes", "keep_checkpoints", "resume", "save_model", "capture_video"}
    logs |= {"upload_model", "hf_entity", "track", "wandb_project_name", "wandb_entity"}
    assert marked(RunArgs, ONLY_LOGS) == logs
    assert marked(RunArgs, CHANGES_NO_BIT) == {"env_stepping", "env_threads"}
    assert marked(Args, ONLY_LOGS) == logs | {"trace"}


def test_coefficients_belong_to_the_algorithms_that_have_them():
    assert not {"ent_coef", "vf_coef"} & {*marks_of(RunArgs)}
    for module in (cleanba_ppo, cleanba_impala):
        assert marks_of(module.Args)["ent_coef"] == (NOT_NEGATIVE,)


@pytest.mark.parametrize(
    ("limits", "number", "problem"),
    [
        (Range(0), -1, "is negative; give 0 or more"),
        (Range(0, above_low=True), 0, "is too small; give a number above 0"),
        (Range(0, 1), 2, "is out of range; give a number from 0 to 1"),
        (Range(0, 1), 1, None),
        (Range(0), 0, None),
    ],
)
def test_ranges(limits, number, problem):
    assert limits.problem(number) == problem


@dataclass(frozen=True)
class Further(cleanba_ppo.Args):
    """A subclass of an algorithm's arguments, with a flag of its own and another type for one of theirs."""

    beta: float = 0.5
    """of the penalty"""
    network: Literal["auto", "tiny"] = "tiny"
    """which of ours"""
    local_num_envs: Annotated[int, Range(2)] = 8


def test_arguments_can_be_derived_from_an_algorithms(capsys):
    args = parse_args(Further(), prog="test", description="", argv=["--beta", "1", "--network", "auto"])
    assert args == Further(beta=1.0, network="auto") and args.clip_coef == 0.1
    check_types(args)  # as when it is read from a file
    with pytest.raises(SystemExit):
        parse_args(Further(), prog="test", description="", argv=["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "of the penalty" in shown and "{auto,tiny}" in shown and "which of ours" in shown
    assert marks_of(Further)["local_num_envs"] == (CAN_CHANGE, Range(2))


def own(kind, default):
    return dataclasses.make_dataclass("Own", [("x", kind, default)], bases=(RunArgs,), frozen=True)()


@pytest.mark.parametrize(
    ("kind", "default", "words", "value"),
    [
        (Literal[1, 2, 3], 2, ["3"], 3),
        (Literal["a", 1], "a", ["1"], 1),
        (tuple[float, float], (0.9, 0.99), ["0.5", "0.6"], (0.5, 0.6)),
        (tuple[int, ...], (), ["5", "1e1"], (5, 10)),
        (Literal[1, 2] | None, None, ["None"], None),
    ],
)
def test_kinds_of_flags(kind, default, words, value):
    args = parse_args(own(kind, default), prog="test", description="", argv=["--x", *words])
    assert args.x == value
    check_types(args)  # as when it is read from a file
    assert parse_args(own(kind, default), prog="test", description="", argv=[]).x == default


@pytest.mark.parametrize(
    ("kind", "default", "words", "message"),
    [
        (Literal[1, 2], 2, ["4"], "--x 4 is not one of 1, 2"),
        (tuple[float, float], (0.9, 0.99), ["0.5"], "--x needs 2 values: --x FLOAT FLOAT"),
        (list[int], None, [], r"--x cannot be of type list\[int\]; give it bool, int, .* tuple\[int, ...\]"),
        (dict, None, [], "--x cannot be of type dict; "),
        (Path, Path("a"), [], "--x cannot be of type pathlib.Path; "),
        (tuple[tuple[int, ...], ...], (), [], "--x cannot be of type tuple"),
    ],
)
def test_kinds_that_no_flag_can_have(kind, default, words, message):
    with pytest.raises(UsageError, match=f"^{message}"):
        parse_args(own(kind, default), prog="test", description="", argv=words and ["--x", *words])


@pytest.mark.parametrize("value", [True, "2", 4, 2.0])
def test_a_choice_from_a_file_has_its_type(value):
    with pytest.raises(UsageError, match="^--x cannot be "):
        check_types(dataclasses.replace(own(Literal[1, 2], 2), x=value))


def test_a_forgotten_decorator_is_said():
    class Args(RunArgs):
        width: int = 64

    with pytest.raises(UsageError, match=r"^class Args has flags of its own; put @dataclass\(frozen=True\)"):
        parse_args(Args(), prog="test", description="", argv=[])


def test_arguments_without_a_file_have_no_help():
    made = dataclasses.make_dataclass("Made", [("gain", float, 2.0)], bases=(RunArgs,), frozen=True)
    assert parse_args(made(), prog="test", description="", argv=["--gain", "3"]).gain == 3.0
