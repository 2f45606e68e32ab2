"""A model from elsewhere names its environment, and `module:Id` means an import: not without the user's
word."""

import json
import sys

import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from cleanba.cleanba_eval import Args, run
from cleanba.config.errors import UsageError
from cleanba.evaluation.evaluate import evaluate
from cleanba.evaluation.model import load_model

CUE = "helpers.own_envs:Cue-v0"


@pytest.fixture(scope="module")
def model_of_cue(tmp_path_factory):
    from cleanba import cleanba_ppo
    from cleanba.training.train import train

    sizes = dict(local_num_envs=4, num_actor_threads=1, num_steps=16, total_timesteps=64, hiddens=(16,))
    folder = tmp_path_factory.mktemp("runs")
    args = cleanba_ppo.Args(env_id=CUE, runs_dir=str(folder), save_model=True, **sizes)
    return train(args, cleanba_ppo.make_algorithm).saved


def with_env(path, to, **changes):
    """The same model, whose environment is another."""
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    metadata["env"] = json.dumps(json.loads(metadata["env"]) | changes)
    save_file(tensors, to, metadata)
    return to


@pytest.fixture
def evil(tmp_path, monkeypatch):
    """A module that must not be executed, on the path."""
    (tmp_path / "evil_module.py").write_text("raise SystemExit('executed')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield "evil_module:Cue-v0"
    assert "evil_module" not in sys.modules


def test_a_module_is_imported_only_if_the_user_names_it(model_of_cue, tmp_path, evil):
    model = with_env(model_of_cue, tmp_path / "evil.cleanrl_model", env_id=evil)
    says = "trained in Cue-v0 of the module evil_module, which would be executed; allow it with --env-id "
    with pytest.raises(UsageError, match=says + evil):
        run(Args(str(model)), None)
    with pytest.raises(UsageError, match=says):
        load_model(model, env_options={"max_episode_steps": 3})
    played = evaluate(load_model(model, env_id=CUE), episodes=2, seed=1)
    assert played.scores()["episodic_length"] == 6


def test_neither_does_another_backend_or_option_get_it_imported(model_of_cue, tmp_path, evil):
    for number, changes in enumerate(
        [dict(backend="envpool", env_id=evil), dict(env_id="Cue-v0", options={"entry_point": evil})]
    ):
        model = with_env(model_of_cue, tmp_path / f"{number}.cleanrl_model", **changes)
        with pytest.raises(UsageError, match="allow (it|them) with --env-"):
            run(Args(str(model)), None)


def test_a_name_in_another_module_is_the_same_environment(model_of_cue, tmp_path):
    model = with_env(model_of_cue, tmp_path / "a.cleanrl_model", env_id="Cue-v0")
    assert load_model(model, env_id=CUE).env.env_id == CUE
    unknown = with_env(model_of_cue, tmp_path / "b.cleanrl_model", env_id="Unheard-of-v0")
    with pytest.raises(UsageError, match="Unheard-of-v0 is not registered with Gymnasium; .*module:Id"):
        evaluate(load_model(unknown), episodes=1, seed=1)
    with pytest.raises(UsageError, match="(?s)was trained in .*Pixels-v0 with 3 actions and 3 float32.*has "):
        evaluate(load_model(model, env_id="helpers.own_envs:Pixels-v0"), episodes=1, seed=1)
