import json

import jax
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from cleanba import cleanba_ppo
from cleanba.sebulba import model as model_file
from cleanba.sebulba.args import UsageError
from cleanba.sebulba.envs import env_spec
from cleanba.sebulba.hub import find_model
from cleanba.sebulba.model import Model, check_environment, load_model, save_model


def make_model(**flags):
    args = cleanba_ppo.Args(**(dict(env_id="CartPole-v1", hiddens=(8,), clip_coef=0.3) | flags))
    model = Model(args, env_spec(args), steps=640, params={})
    return model._replace(params=jax.device_get(jax.jit(model.policy.init)(jax.random.key(1))))


@pytest.fixture
def saved(tmp_path):
    model = make_model()
    save_model(tmp_path / "a.cleanrl_model", model)
    return tmp_path / "a.cleanrl_model", model


def rewrite(path, tensors=None, **metadata):
    """The file with other metadata or tensors."""
    with safe_open(path, framework="numpy") as file:
        header = file.metadata() | {name: value for name, value in metadata.items() if value is not None}
        for name in [name for name, value in metadata.items() if value is None]:
            del header[name]
        save_file(tensors or {name: file.get_tensor(name) for name in file.keys()}, path, header)  # noqa: SIM118


def as_type(path, dtype):
    with safe_open(path, framework="numpy") as file:
        return {name: file.get_tensor(name).astype(dtype) for name in file.keys()}  # noqa: SIM118


def edited(path, part, **values):
    with safe_open(path, framework="numpy") as file:
        return json.dumps(json.loads(file.metadata()[part]) | values)


@pytest.mark.parametrize(
    "flags",
    [
        dict(),
        dict(env_id="Breakout-v5", network="nature", atari_preset="impala"),
        dict(env_id="Breakout-v5", channels=(4, 8), hiddens=(16, 16), compute_dtype="bfloat16"),
    ],
)
def test_a_model_comes_back_bit_for_bit(tmp_path, flags):
    model = make_model(**flags)
    save_model(tmp_path / "a.cleanrl_model", model)
    loaded = load_model(tmp_path / "a.cleanrl_model")
    jax.tree.map(np.testing.assert_array_equal, loaded.params, model.params)
    assert jax.tree.structure(loaded.params) == jax.tree.structure(model.params)
    assert loaded.env == model.env and loaded.steps == 640
    assert all(getattr(model.args, name) == value for name, value in vars(loaded.args).items())
    obs = np.ones((3, *model.env.obs_shape), model.env.obs_dtype)
    mine, theirs = (jax.jit(m.policy.apply)(m.params, obs) for m in (model, loaded))
    jax.tree.map(np.testing.assert_array_equal, mine, theirs)
    check_environment(loaded)


@pytest.mark.parametrize("kept", [0, 1, 7, 100, 0.5, 0.999])
def test_a_truncated_file_is_refused(saved, kept):
    path, _ = saved
    data = path.read_bytes()
    path.write_bytes(data[: kept if isinstance(kept, int) else int(kept * len(data))])
    with pytest.raises(UsageError, match="a.cleanrl_model is damaged, perhaps cut off"):
        load_model(path)


def test_a_newer_format_is_refused(saved):
    path, _ = saved
    rewrite(path, format=str(model_file.FORMAT + 1))
    with pytest.raises(UsageError, match="a newer Cleanba .format 2, this one reads up to 1.; update it"):
        load_model(path)


def test_other_files_are_refused(tmp_path, saved):
    path, _ = saved
    rewrite(path, format=None)
    with pytest.raises(UsageError, match="not a Cleanba model"):
        load_model(path)
    with pytest.raises(UsageError, match="cannot be read"):
        load_model(tmp_path / "nothing")
    (tmp_path / "pickle").write_bytes(b"\x80\x04\x95cos\nsystem\n")
    with pytest.raises(UsageError, match="damaged"):
        load_model(tmp_path / "pickle")


@pytest.mark.parametrize(
    ("part", "value"),
    [("args", "{"), ("args", "[1]"), ("env", "{}"), ("steps", "many")],
)
def test_a_damaged_header_is_refused(saved, part, value):
    path, _ = saved
    rewrite(path, **{part: value})
    with pytest.raises(UsageError, match="has a header that is damaged"):
        load_model(path)


def test_params_of_another_network_are_refused_before_they_are_read(saved):
    path, _ = saved
    rewrite(path, args=edited(path, "args", hiddens=[10**9]))
    with pytest.raises(UsageError, match="Dense_0/bias should be .1000000000,., is .8,."):
        load_model(path)
    with pytest.raises(UsageError, match="Dense_0/bias should be .8,., is I8"):
        rewrite(path, tensors=as_type(path, np.int8), args=edited(path, "args", hiddens=[8]))
        load_model(path)
    rewrite(path, tensors={"a": np.zeros(3, np.float32)}, args=edited(path, "args", hiddens=[8]))
    with pytest.raises(UsageError, match="should be absent, is .3,."):
        load_model(path)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (dict(num_actions=6), "trained in CartPole-v1 with 6 actions .*here has CartPole-v1 with 2 actions"),
        (dict(obs_shape=(3,)), "with 2 actions and 3 float32 observations; .* 4 float32 observations"),
        (dict(env_id="CartPole-v9"), "CartPole-v9 is not an EnvPool environment; did you mean CartPole-v"),
        (dict(env_id="Acrobot-v1"), "trained in Acrobot-v1 with 2 actions .*here has Acrobot-v1 with 3"),
        (dict(options={"base_path": "/"}), "has options that are not known here: base_path"),
        (dict(options={"frame_skip": 4}), "cannot be played with the EnvPool here: .*frame_skip"),
    ],
)
def test_another_environment_or_action_set_is_refused(changed, message):
    model = make_model()
    with pytest.raises(UsageError, match=message):
        check_environment(model._replace(env=model.env._replace(**changed)))


def test_sizes_in_the_header_allocate_nothing(saved):
    path, _ = saved
    rewrite(path, env=edited(path, "env", obs_shape=[10**12]))
    with pytest.raises(UsageError, match="Dense_0/kernel should be .1000000000000, 8., is .4, 8."):
        load_model(path)


def test_a_model_is_found_by_file_and_by_folder(saved):
    path, _ = saved
    assert find_model(str(path)) == path
    assert find_model(str(path.parent)) == path
    save_model(path.parent / "b.cleanrl_model", make_model())
    with pytest.raises(UsageError, match="several models; name one of a.cleanrl_model, b.cleanrl_model"):
        find_model(str(path.parent))
    (path.parent / "empty").mkdir()
    with pytest.raises(UsageError, match="holds no .cleanrl_model file; train with --save-model"):
        find_model(str(path.parent / "empty"))
    with pytest.raises(UsageError, match="no/such/file does not exist"):
        find_model("no/such/file")


def test_a_typo_in_a_path_is_not_asked_of_the_hub(saved, monkeypatch):
    path, _ = saved
    monkeypatch.chdir(path.parent.parent)
    for name in (f"{path.parent.name}/nothing", "some-team/a.cleanrl_model"):
        with pytest.raises(UsageError, match=f"{name} does not exist"):
            find_model(name)


def test_others_may_read_the_model_as_they_may_read_the_run(saved):
    path, _ = saved
    other = path.with_name("other")
    other.touch()
    assert path.stat().st_mode == other.stat().st_mode
