"""A model's header is checked, and what it asks for bounded, before anything is built from it."""

import json
import os

import numpy as np
import pytest
from helpers.models import as_type, edited, make_model, rewrite

from cleanba.cleanba_ppo import Args
from cleanba.config.errors import UsageError
from cleanba.envs.atari import ATARI_PRESETS
from cleanba.envs.factory import env_spec
from cleanba.evaluation import model as model_file
from cleanba.evaluation.evaluate import evaluate
from cleanba.evaluation.header import check_options
from cleanba.evaluation.model import load_model, load_published, save_model


@pytest.fixture(scope="module")
def saved_once(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "a.cleanrl_model"
    save_model(path, make_model())
    return path


@pytest.fixture
def path(saved_once, tmp_path):
    (tmp_path / "a.cleanrl_model").write_bytes(saved_once.read_bytes())
    return tmp_path / "a.cleanrl_model"


@pytest.fixture
def nothing_is_built(monkeypatch):
    for name in ("load_algorithm", "probe"):
        monkeypatch.setattr(model_file, name, lambda *_: pytest.fail("something is built"))


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("args", "{"),
        ("args", "[1]"),
        ("args", "[" * 100_000),
        ("env", "{}"),
        ("env", "[]"),
        ("env", "null"),
        ("steps", "many"),
        ("steps", "-1"),
        ("steps", str(10**21)),
        ("answers", "{}"),
        ("answers", "7"),
    ],
)
@pytest.mark.usefixtures("nothing_is_built")
def test_a_damaged_header_is_refused(path, part, value):
    rewrite(path, **{part: value})
    with pytest.raises(UsageError, match="has a damaged header"):
        load_model(path)


ARRAY = dict(shape=[4], dtype="float32", stack=1)
IMAGE = dict(shape=[4, 16384, 16384], dtype="uint8", stack=4)
ACTION = dict(kind="discrete", shape=[], dtype="int32", n=2, ns=[], low=[], high=[])
BOX = ACTION | dict(kind="box", dtype="float32", n=0, shape=[2], low=[-1, -1.5], high=[1, 1])
NUMBERS = ACTION | dict(kind="multi_discrete", n=0, shape=[2], ns=[2, 3])
HUGE = ATARI_PRESETS["impala"] | dict(img_height=16384, img_width=16384)


@pytest.mark.parametrize(
    "change",
    [
        dict(obs=ARRAY | dict(shape=[10**12])),
        dict(obs=ARRAY | dict(shape=[2**12, 2**12])),
        dict(obs=ARRAY | dict(shape=[1] * 100)),
        dict(obs=ARRAY | dict(shape="four")),
        dict(obs=ARRAY | dict(shape=[4.0])),
        dict(obs=ARRAY | dict(shape=[-4])),
        dict(obs=ARRAY | dict(shape=[True])),
        dict(obs=ARRAY | dict(shape=4)),
        dict(obs=ARRAY | dict(dtype="O")),
        dict(obs=ARRAY | dict(dtype="S1000000000")),
        dict(obs=ARRAY | dict(dtype=[["a", "f4"]])),
        dict(obs=ARRAY | dict(stack="4")),
        dict(obs={}),
        dict(obs={str(i): ARRAY for i in range(1000)}),
        dict(obs=None),
        dict(obs=IMAGE),
        dict(action=ACTION | dict(n=10**9)),
        dict(action=ACTION | dict(n="2")),
        dict(action=ACTION | dict(n=None)),
        dict(action=ACTION | dict(kind="any")),
        dict(action=ACTION | dict(shape=[2**40])),
        dict(action=ACTION | dict(low="-inf")),
        dict(action=ACTION | dict(dtype="V8")),
        dict(action=ACTION | dict(shape=[2])),
        dict(action=ACTION | dict(n=True)),
        dict(action=ACTION | dict(more=1)),
        dict(action=NUMBERS | dict(ns=[1] * 200_000)),
        dict(action=NUMBERS | dict(shape=[257], ns=[1] * 257)),
        dict(action=NUMBERS | dict(ns=[1])),
        dict(action=NUMBERS | dict(ns=[2**15, 2**15 + 1])),
        dict(action=NUMBERS | dict(ns=[2, 0])),
        dict(action=NUMBERS | dict(ns=[2, 3.0])),
        dict(action=NUMBERS | dict(ns="23")),
        dict(action=BOX | dict(low=[-1] * 200_000)),
        dict(action=BOX | dict(high=[])),
        dict(action=BOX | dict(high=[[1, 1]])),
        dict(action=BOX | dict(high=["1", "1"])),
        dict(action=BOX | dict(high=[1, 10**400])),
        dict(action=BOX | dict(low=None)),
        dict(action=BOX | dict(shape=[])),
        dict(action=BOX | dict(shape=[1, 2])),
        dict(options=HUGE),
        dict(options=[]),
        dict(options={"frame_skip": "4"}),
        dict(options={"gray_scale": 1}),
        dict(options={"base_path": "/"}),
        dict(env_id=["CartPole-v1"]),
        dict(backend="os"),
        dict(backend=[]),
    ],
    ids=lambda change: str(change)[:100],
)
@pytest.mark.usefixtures("nothing_is_built")
def test_an_impossible_environment_is_refused(path, change):
    rewrite(path, env=edited(path, "env", **change))
    with pytest.raises(UsageError, match="has a damaged header|asks for options that no preset"):
        load_model(path)


@pytest.mark.parametrize("action", [BOX, NUMBERS], ids=["box", "multi_discrete"])
def test_actions_of_several_numbers_are_allowed(path, action):
    rewrite(path, env=edited(path, "env", action=action))
    with pytest.raises(UsageError, match="params .* do not fit"):  # they are of a network with two actions
        load_model(path)


def test_options_that_the_user_names_are_allowed_and_go_over_the_models(path):
    rewrite(path, env=edited(path, "env", options={"max_episode_steps": 9}))
    with pytest.raises(UsageError, match=r"allow them with --env-options '{\"max_episode_steps\": 9}'"):
        load_model(path)
    for steps in (9, 7):
        options = {"max_episode_steps": steps}
        model = load_model(path, env_options=options)
        assert model.env.options == options
        lengths = [episode.length for episode in evaluate(model, episodes=2, seed=1).episodes]
        assert max(lengths) <= steps


def test_what_frame_stack_can_give_is_allowed(path):
    env = env_spec(Args(env_id="Pong-v5", frame_stack=1))
    check_options(path, env, {})
    with pytest.raises(UsageError, match="stack_num"):
        check_options(path, env._replace(options={"stack_num": 1000}), {})


@pytest.mark.usefixtures("nothing_is_built")
def test_a_network_without_end_is_refused(path):
    for change in (dict(hiddens=[1] * 100_000), dict(channels=[1] * 1000)):
        rewrite(path, args=edited(path, "args", **change))
        with pytest.raises(UsageError, match="too many layers"):
            load_model(path)


def image(*shape):
    return dict(shape=shape, dtype="uint8", stack=1)


@pytest.mark.parametrize(
    ("obs", "channels"),
    [
        (image(1, 1448, 1448), [64, *[1] * 12]),
        (image(1448, 1448, 1), [1, 256]),
        (image(1, 1, 2**21), [1, 1, 1, 256]),
        ({str(i): image(3, 480, 640) for i in range(4)}, [32]),
        ({str(i): ARRAY | dict(shape=[2**21]) for i in range(17)}, [1]),
    ],
    ids=["first", "second", "thin", "cameras", "vectors"],
)
@pytest.mark.usefixtures("nothing_is_built")
def test_a_layer_without_end_is_refused(path, obs, channels):
    rewrite(path, env=edited(path, "env", obs=obs), args=edited(path, "args", channels=channels))
    with pytest.raises(UsageError, match=r"a layer of [\d,]+ numbers per observation, more than 33,554,432"):
        load_model(path)


@pytest.mark.parametrize(
    ("obs", "flags"),
    [
        (image(4, 84, 84), dict(channels=[64, 128, 128])),  # the largest preset
        (image(64, 64, 3), dict()),  # Procgen
        ({str(i): image(3, 480, 640) for i in range(4)}, dict()),
        (image(1, 1448, 1448), dict(network="mlp")),  # which has no convolutions
    ],
    ids=["large", "procgen", "cameras", "mlp"],
)
def test_a_wide_layer_is_allowed(path, obs, flags):
    rewrite(path, env=edited(path, "env", obs=obs), args=edited(path, "args", **flags))
    with pytest.raises(UsageError, match="params .* do not fit"):  # they are of a network that sees 4 numbers
        load_model(path)


def test_many_arrays_to_see_are_no_network_without_end(path):
    """Convolutions are for images only."""
    one = json.loads(edited(path, "env"))["obs"]
    rewrite(path, env=edited(path, "env", obs={f"sensor-{i}": one for i in range(22)}))
    with pytest.raises(UsageError, match="params .* do not fit"):  # they are of a network that sees one
        load_model(path)


def test_what_no_network_can_be_made_of_is_refused(path):
    rewrite(path, args=edited(path, "args", recurrent="lstm", recurrent_width=2**50))
    with pytest.raises(UsageError, match="has a damaged header"):
        load_model(path)


@pytest.mark.parametrize(
    "change",
    [
        dict(hiddens="8"),
        dict(hiddens=["8"]),
        dict(hiddens=[-8]),
        dict(hiddens=[]),
        dict(channels=[1.5]),
        dict(network="huge"),
        dict(compute_dtype="float8"),
        dict(gamma="x"),
        dict(num_steps=None),
        dict(num_steps=0),
        dict(total_timesteps=10**21),
        dict(local_num_envs=2**53, inference_batch=3),
        dict(learner_device_ids=[]),
        dict(exp_name=7),
    ],
    ids=str,
)
def test_flags_of_the_wrong_type_are_refused(path, monkeypatch, change):
    monkeypatch.setattr(model_file, "probe", lambda *_: pytest.fail("something is built"))
    rewrite(path, args=edited(path, "args", **change))
    with pytest.raises(UsageError, match=r"has a damaged header \(.*--"):
        load_model(path)


@pytest.mark.parametrize("probe", [[1, "x"], [[[1], 2]], ["a", "b", "c", "d"], [{}] * 4], ids=str)
def test_a_probe_that_is_no_numbers_is_refused(path, probe):
    rewrite(path, answers=json.dumps(probe))
    with pytest.raises(UsageError, match="damaged header|answers differently"):
        load_model(path)


def test_control_characters_reach_no_terminal(path):
    clear = "\x1b[2J\x1b]0;title\x07\nerror: nothing"
    edits = [
        dict(algorithm=f"x{clear}.py"),
        dict(env=edited(path, "env", options={clear: 1})),
        dict(env=edited(path, "env", backend=clear)),
        dict(args=edited(path, "args", hiddens=clear)),
        dict(tensors=as_type(path, np.float32) | {clear: np.zeros(3, np.float32)}),
    ]
    original = path.read_bytes()
    for edit in edits:
        rewrite(path, **edit)
        with pytest.raises(UsageError) as refusal:
            load_model(path)
        assert str(refusal.value).isprintable(), edit
        path.write_bytes(original)


def test_a_fifo_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.cleanrl_model")
    with pytest.raises(UsageError, match="cannot be read: it is not a regular file"):
        load_model(tmp_path / "a.cleanrl_model")
    with pytest.raises(UsageError, match="cannot be read, .* it is not a regular file"):
        load_published(tmp_path / "a.cleanrl_model", make_model().published)
