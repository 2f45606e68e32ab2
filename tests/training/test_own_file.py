"""The file of an algorithm of one's own: what is recorded of it, and said when it has changed."""

import json
import os
import shutil
from pathlib import Path
from zlib import crc32

import pytest
from helpers.runs import REPO, edit_args, read_args

from cleanba.algorithms import load_algorithm
from cleanba.analysis.diff import read_run, show_circumstances
from cleanba.config.errors import UsageError
from cleanba.records.outcome import summary
from cleanba.records.run_status import run_status
from cleanba.training.train import train

SMALL = dict(env_id="CartPole-v1", local_num_envs=4, num_actor_threads=1, env_threads=1)
FILE = Path("var/k 2.py")


@pytest.fixture
def train_file(tmp_path, monkeypatch):
    """A run with the algorithm in var/, started from the folder above it."""
    monkeypatch.chdir(tmp_path)
    FILE.parent.mkdir()
    shutil.copy(REPO / "examples/a2c.py", FILE)

    def train_file(steps=64, resume=None, **flags):
        module = load_algorithm(str(FILE))
        sizes = dict(width=8, total_timesteps=steps, resume=resume and str(resume))
        return train(module.Args(**SMALL | sizes | flags), module.make_algorithm)

    return train_file


def test_a_changed_file_is_recorded_said_and_shown(train_file, capsys):
    run_dir = train_file().run_dir
    train_file(128, run_dir)
    assert "has changed" not in capsys.readouterr().err
    FILE.write_text(FILE.read_text() + "# changed\n")
    train_file(192, run_dir)
    (said,) = (line for line in capsys.readouterr().err.splitlines() if "has changed" in line)
    assert said == "var/k 2.py has changed since the last part of this run, which goes on with it"
    first, second, third = (part["algorithm_file"] for part in read_args(run_dir)["parts"])
    assert first == second != third
    shown = show_circumstances(read_run(train_file().run_dir), read_run(run_dir))
    (line,) = (line for line in shown if "  algorithm's file" in line)
    assert line.split()[-2:] == [third, first]
    assert not any("part 2: algorithm's file" in line for line in shown)
    assert any("part 3: algorithm's file" in line and third in line for line in shown)


def test_a_record_without_it_resumes_and_cleanbas_own_have_none(train_file, run, capsys):
    run_dir = train_file().run_dir
    record = read_args(run_dir)
    del record["parts"][0]["algorithm_file"]
    (run_dir / "args.json").write_text(json.dumps(record))
    train_file(128, run_dir)
    assert "has changed" not in capsys.readouterr().err
    assert "algorithm_file" not in read_args(run(total_timesteps=64)[0].run_dir)["parts"][0]


def test_commands_that_are_shown_name_the_file_from_here(train_file):
    outcome = train_file(save_model=True)
    shown = f"cleanba eval {outcome.run_dir} --algorithm 'var/k 2.py' evaluates the model"
    assert summary(outcome).splitlines()[-1] == shown
    (outcome.run_dir / "finished.json").unlink()
    command = run_status(outcome.run_dir).resume_command
    assert command == f"cleanba train 'var/k 2.py' --resume {outcome.run_dir}"


def test_a_path_that_is_not_utf_8_is_refused_before_anything_is_trained(train_file):
    """JAX fails at its first operation, or else the model when all is trained."""
    moved = Path(os.fsdecode(b"r\xff/a2c.py"))
    moved.parent.mkdir()
    shutil.copy(FILE, moved)
    refused = r"a2c.py is not UTF-8, .* rename the file or its folder$"
    with pytest.raises(UsageError, match=refused):
        load_algorithm(str(moved))
    module = load_algorithm(str(FILE))
    module.__file__ = str(moved)  # as in `python FILE`
    with pytest.raises(UsageError, match=refused):
        train(module.Args(**SMALL, width=8, total_timesteps=64, save_model=True), module.make_algorithm)
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (dict(hiddens=(64, 64)), "--hiddens"),
        (dict(network="mlp"), "--network"),
        (dict(compute_dtype="bfloat16"), "--compute-dtype"),
        (dict(separate_critic=True), "--separate-critic"),
        (dict(normalize_observations=True), "--normalize-observations"),
    ],
)
@pytest.mark.parametrize("extra", [False, True])
def test_flags_that_it_does_not_read_are_refused(train_file, flags, name, extra):
    if extra:  # which is no sign that it normalizes
        text = FILE.read_text().replace("init=agent.init,", "init=init,\n        next_extra=next_extra,")
        text = text.replace("    network: Any =", f"{EXTRA}    network: Any =")
        FILE.write_text(text)
        train_file()
    with pytest.raises(UsageError, match=f"^{name} has no effect in this algorithm; leave it out$"):
        train_file(**flags)


@pytest.mark.parametrize(
    ("part", "instead", "message"),
    [
        (
            "Loss(policy_loss",
            "Loss(jnp.ones(1) * policy_loss",
            r"loss gives total as float32 \(1,\); give",
        ),
        (
            "entropy=entropy)",
            "entropy=rows.advantage)",
            r"loss gives metrics/entropy as float32 \(64,\)",
        ),
    ],
)
def test_a_loss_that_is_no_sum_is_said_before_the_first_step(train_file, part, instead, message):
    text = FILE.read_text()
    assert part in text
    FILE.write_text(text.replace(part, instead))
    with pytest.raises(UsageError, match=f"^{message}"):
        train_file()


def test_steps_that_cannot_be_split_are_refused_by_name(train_file):
    with pytest.raises(UsageError, match="^--num-steps 16 cannot be split as .* asks; try 15 or 18$"):
        train_file(num_minibatches=3)


EXTRA = """    def init(key):
        return agent.init(key)._replace(extra={"beta": jnp.ones(())})
    def next_extra(published, rollout, metrics, global_sum):
        return {"beta": published.extra["beta"] * 2}
"""


@pytest.mark.parametrize(
    ("where", "line"),
    [
        ("    network: Any =", "    args.hiddens\n"),
        ("    network: Any =", "    args.network\n"),
        ("    network: Any =", "    vars(args)\n"),
        ("    _, last_value", "    ARGS.hiddens\n"),  # while it is traced
    ],
)
def test_flags_that_it_reads_are_not(train_file, where, line):
    text = FILE.read_text().replace(where, f"{line}{where}", 1)
    FILE.write_text(
        text.replace("    network: Any =", "    global ARGS\n    ARGS = args\n    network: Any =")
    )
    train_file(hiddens=(64,))


def test_a_run_of_before_that_has_such_a_flag_resumes(train_file):
    run_dir = train_file().run_dir
    edit_args(run_dir, hiddens=[64])
    module = load_algorithm(str(FILE))
    args = module.Args(resume=str(run_dir), total_timesteps=128)
    outcome = train(args, module.make_algorithm, given={"total_timesteps"})
    assert outcome.last_row["update"] == 2 and outcome.model.args.hiddens == (64,)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (dict(env_id="Pendulum-v1"), "for discrete actions; Pendulum-v1 has 1 continuous actions"),
        (
            dict(last_action_reward=True),
            "for one array to see; CartPole-v1 has obs, last_action, last_reward",
        ),
    ],
)
def test_the_example_says_what_it_cannot_do(train_file, flags, message):
    with pytest.raises(UsageError, match=f"^a2c is {message}$"):
        train_file(**flags)


def write_own(text, path=Path("own.py")):
    path.write_text(text)
    return load_algorithm(str(path))


DERIVED = """
from dataclasses import dataclass
from a2c import {imported}

{own}
"""
OWN_ARGS = """
@dataclass(frozen=True)
class Args({base}):
    beta: float = 0.5
"""


@pytest.mark.parametrize(
    ("imported", "own"),
    [
        ("make_algorithm, Args as Theirs", OWN_ARGS.format(base="Theirs")),
        ("Args, make_algorithm as theirs", "def make_algorithm(*inputs):\n    return theirs(*inputs)"),
        ("Args, make_algorithm as theirs", "from functools import partial\nmake_algorithm = partial(theirs)"),
    ],
)
def test_a_file_with_parts_of_another_is_the_one_that_is_recorded(train_file, tmp_path, imported, own):
    shutil.copy(FILE, "a2c.py")
    module = write_own(DERIVED.format(imported=imported, own=own))
    if "partial" in own:  # of which Python does not know the file; its arguments have one
        module = write_own(Path("own.py").read_text() + OWN_ARGS.format(base="Args"))
    run_dir = train(module.Args(**SMALL, width=8, total_timesteps=64), module.make_algorithm).run_dir
    record = read_args(run_dir)
    assert record["algorithm"] == "own.py"
    assert record["parts"][0]["algorithm_file"] == f"{crc32(Path('own.py').read_bytes()):08x}"


STATE = """
def make_algorithm(args, env, plan):
    algorithm = a2c.make_algorithm(args, env, plan)
    def act(*inputs):
        decision, state = algorithm.act(*inputs[:3], (), *inputs[4:])
        return decision, {act}
    def play(*inputs, greedy):
        action, state = algorithm.play(*inputs[:3], (), *inputs[4:], greedy=greedy)
        return action{play}, inputs[3]
    def init(key):
        published = algorithm.init(key)
        return published._replace(params=jax.tree.map(lambda x: x.astype("{dtype}"), published.params))
    def initial_state(n):
        return jnp.zeros((n, 3), jnp.int32)
    return algorithm._replace(act=act, play=play, init=init, initial_state=initial_state)
"""


@pytest.mark.parametrize(
    ("replaced", "message"),
    [
        ({}, None),
        (
            dict(act="inputs[3] + 0.5"),
            r"the state that act gives has one array as float32 \(1, 3\), ini",
        ),
        (
            dict(act="inputs[3][:, :1]"),
            r"the state that act gives has one array as int32 \(1, 1\), ini",
        ),
        (dict(act="(inputs[3], 0)"), "the state that act gives has 0, 1, initial_state gave one array"),
        (
            dict(play="[..., None]"),
            r"play gives actions \(\(1,\), dtype\('int32'\)\), those of CartPole-v1 are \(\(\), ",
        ),
        (dict(play=".astype(float)"), r"play gives actions \(\(\), dtype\('float32'\)\)"),
        (dict(dtype="bfloat16"), "the algorithm's params/.*bfloat16; give it a type of four bytes"),
    ],
)
def test_what_does_not_fit_is_said_before_the_first_step(train_file, replaced, message):
    shutil.copy(FILE, "a2c.py")
    parts = dict(act="inputs[3]", play="", dtype="float32") | replaced
    text = "import a2c, jax, jax.numpy as jnp\nfrom a2c import Args\n"
    module = write_own(text + STATE.format(**parts))
    args = module.Args(**SMALL, width=8, total_timesteps=64, save_model=True)
    if message is None:
        assert train(args, module.make_algorithm).last_row["update"] == 1
        return
    with pytest.raises(UsageError, match=f"^{message}"):
        train(args, module.make_algorithm)
