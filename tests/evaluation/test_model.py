"""Model files come back as they were saved; damaged, foreign and unfit ones are refused."""

import json

import jax
import numpy as np
import pytest
from helpers.models import as_type, edited, make_model, rewrite
from safetensors import safe_open

from cleanba.config.errors import UsageError
from cleanba.envs.spec import ActionSpec, ArraySpec
from cleanba.evaluation import model as model_file
from cleanba.evaluation.hub import find_model
from cleanba.evaluation.model import agree, check_environment, load_model, probe, save_model


@pytest.fixture
def saved(tmp_path):
    model = make_model()
    save_model(tmp_path / "a.cleanrl_model", model)
    return tmp_path / "a.cleanrl_model", model


@pytest.mark.parametrize(
    "flags",
    [
        dict(),
        dict(env_id="Breakout-v5", network="nature", atari_preset="impala"),
        pytest.param(
            dict(env_id="Breakout-v5", channels=(4, 8), hiddens=(16, 16), compute_dtype="bfloat16"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_model_comes_back_bit_for_bit(tmp_path, flags):
    model = make_model(**flags)
    save_model(tmp_path / "a.cleanrl_model", model)
    loaded = load_model(tmp_path / "a.cleanrl_model")
    jax.tree.map(np.testing.assert_array_equal, loaded.params, model.params)
    assert jax.tree.structure(loaded.params) == jax.tree.structure(model.params)
    assert loaded.env == model.env and loaded.steps == 640
    jax.tree.map(np.testing.assert_array_equal, probe(model), probe(loaded))
    assert loaded.args == model.args and loaded.algorithm_name == "ppo"
    check_environment(loaded)


@pytest.mark.parametrize("kept", [0, 1, 7, 100, 0.5, 0.999])
def test_a_truncated_file_is_refused(saved, kept):
    path, _ = saved
    data = path.read_bytes()
    path.write_bytes(data[: kept if isinstance(kept, int) else int(kept * len(data))])
    with pytest.raises(UsageError, match="a.cleanrl_model is damaged, perhaps truncated"):
        load_model(path)


def test_a_newer_format_is_refused(saved):
    path, _ = saved
    rewrite(path, format=str(model_file.FORMAT + 1))
    with pytest.raises(UsageError, match="a newer Cleanba .format 3, this one reads up to 2.; update it"):
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


def test_params_of_another_network_are_refused_before_they_are_read(saved):
    path, _ = saved
    rewrite(path, args=edited(path, "args", hiddens=[10**9]))
    with pytest.raises(UsageError, match="Dense_0/bias should be float32 .1000000000,., is float32 .8,."):
        load_model(path)
    with pytest.raises(UsageError, match="Dense_0/bias should be float32 .8,., is I8 .8,."):
        rewrite(path, tensors=as_type(path, np.int8), args=edited(path, "args", hiddens=[8]))
        load_model(path)
    rewrite(path, tensors={"a": np.zeros(3, np.float32)}, args=edited(path, "args", hiddens=[8]))
    with pytest.raises(UsageError, match="should be absent, is float32 .3,."):
        load_model(path)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            dict(action=ActionSpec("discrete", n=6)),
            "trained in CartPole-v1 with 6 actions .* EnvPool has CartPole-v1 with 2 actions",
        ),
        (
            dict(obs=ArraySpec((3,), np.dtype(np.float32))),
            "with 2 actions and 3 float32 observations; .* 4 float32 observations",
        ),
        (dict(env_id="CartPole-v9"), "CartPole-v9 is not an EnvPool environment; did you mean CartPole-v"),
        (dict(env_id="Acrobot-v1"), "trained in Acrobot-v1 with 2 actions .* EnvPool has Acrobot-v1 with 3"),
        (dict(options={"base_path": "/"}), "has no option 'base_path'"),
        (dict(options={"frame_skip": 4}), "environment is not in the installed EnvPool: .*frame_skip"),
    ],
)
def test_another_environment_or_action_set_is_refused(changed, message):
    model = make_model()
    with pytest.raises(UsageError, match=message):
        check_environment(model._replace(env=model.env._replace(**changed)))


def test_a_model_is_found_by_file_and_by_folder(saved):
    path, _ = saved
    assert find_model(str(path)) == path
    assert find_model(str(path.parent)) == path
    save_model(path.parent / "b.cleanrl_model", make_model())
    with pytest.raises(UsageError, match="several models; give one of a.cleanrl_model, b.cleanrl_model"):
        find_model(str(path.parent))
    (path.parent / "empty").mkdir()
    with pytest.raises(UsageError, match="has no .cleanrl_model file; train with --save-model"):
        find_model(str(path.parent / "empty"))
    with pytest.raises(UsageError, match="no/such/file does not exist"):
        find_model("no/such/file")


def test_a_mistyped_path_is_not_looked_up_on_the_hub(saved, monkeypatch):
    path, _ = saved
    monkeypatch.chdir(path.parent.parent)
    for name in (f"{path.parent.name}/nothing", "some-team/a.cleanrl_model"):
        with pytest.raises(UsageError, match=f"{name} does not exist"):
            find_model(name)


def test_the_model_file_has_the_usual_permissions(saved):
    path, _ = saved
    other = path.with_name("other")
    other.touch()
    assert path.stat().st_mode == other.stat().st_mode


def test_a_policy_that_answers_differently_is_refused(saved):
    """Another network with tensors of the same names and shapes, as an algorithm of one's own may have."""
    path, model = saved
    greedy, action, logprob, value = probe(model)
    with safe_open(path, framework="numpy") as file:
        answers = [x.tolist() for x in (greedy, action, logprob, value)]
        assert json.loads(file.metadata()["answers"]) == answers and len(greedy) == 64
    flipped, most, spread = 1 - action, np.arange(64) % 16 < 13, value[:16].std()
    for same in (
        (greedy, action, logprob, value),
        (greedy, action, logprob * (1 + 5e-5), value + 0.01 * spread),  # another device rounds differently
        (greedy, np.where(most, action, flipped), np.where(most, logprob, -9.0), value),
    ):
        rewrite(path, answers=json.dumps([x.tolist() for x in same]))
        load_model(path)
    for other in (
        (greedy, action, logprob + 0.01, value),
        (greedy, action, logprob, np.where(np.arange(64) < 32, value - 2 * spread, value)),
        (greedy, flipped, logprob, value),
        (1 - greedy, action, logprob, value),
        (greedy, action, logprob[:-1], value),
        (greedy, action, logprob),
    ):
        rewrite(path, answers=json.dumps([x.tolist() for x in other]))
        with pytest.raises(UsageError, match="the policy of ppo answers differently from when .* was saved"):
            load_model(path)


@pytest.mark.parametrize("factor", [3.0, 1.1])
def test_other_probabilities_are_noticed_in_a_policy_that_is_hardly_trained(saved, factor):
    """Its probabilities are all nearly 1/2, and so are those of the others."""
    path, model = saved
    heads = {"Dense_1": {name: factor * x for name, x in model.params["params"]["Dense_1"].items()}}
    other = model._replace(params={"params": model.params["params"] | heads})
    before, now = probe(model), probe(other)
    assert np.abs(before[2][:16] - now[2][:16]).max() < 0.05
    np.testing.assert_array_equal(before[3], now[3])
    rewrite(path, answers=json.dumps([x.tolist() for x in now]))
    with pytest.raises(UsageError, match="answers differently"):
        load_model(path)


def test_another_activation_is_noticed_by_the_policy_alone():
    """As where the critic is a tower of its own, which stays."""
    before, now = (probe(make_model(separate_critic=True, activation=name)) for name in ("tanh", "relu"))
    policy = [x.tolist() for x in before[:3]]
    assert agree(policy, before[:3], 1e-4) and not agree(policy, now[:3], 1e-4)


def test_a_model_of_before_with_fewer_answers_loads(saved):
    path, model = saved
    first = [x[:16].tolist() for x in probe(model)]
    rewrite(path, answers=None, probe=json.dumps(first))
    load_model(path)
    rewrite(path, probe=json.dumps([first[0], first[1], first[3], first[2]]))
    with pytest.raises(UsageError, match="answers differently"):
        load_model(path)


def test_a_model_saved_in_a_hurry_has_no_probe_and_loads(tmp_path):
    save_model(tmp_path / "a.cleanrl_model", make_model(), with_probe=False)
    assert load_model(tmp_path / "a.cleanrl_model").steps == 640


def test_a_file_that_a_model_names_is_shown_and_never_imported(saved, monkeypatch):
    path, _ = saved
    (path.parent / "evil.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(path.parent)
    rewrite(path, algorithm="evil.py")
    with pytest.raises(UsageError, match="was trained by evil.py; give that file: --algorithm evil.py"):
        load_model(path)
