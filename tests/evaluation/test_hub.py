"""The real client of the Hugging Face Hub against a stub server."""

import os

import numpy as np
import pytest
import yaml
from helpers.hub_stub import READING_TOKEN, TOKEN, Hub
from helpers.models import cleanba_eval, make_model
from helpers.runs import REPO, SMALL, run_python

from cleanba.envs.episodes import Episode
from cleanba.evaluation.evaluate import Evaluation
from cleanba.evaluation.hub import model_card, repo_name
from cleanba.evaluation.model import load_model, save_model


@pytest.fixture
def hub(tmp_path):
    server = Hub(tmp_path / "hub")
    yield server
    server.shutdown()
    server.server_close()


def client_env(tmp_path, address, token=TOKEN):
    """Variables that the client reads, and a home of its own, without the user's token and cache."""
    env = dict(HF_ENDPOINT=address, HF_HUB_DISABLE_XET="1", HF_HOME=str(tmp_path / "home"))
    return env | ({"HF_TOKEN": token} if token else {})


def train_and_upload(tmp_path, env, *flags):
    base = {name: value for name, value in os.environ.items() if name != "HF_TOKEN"}
    command = [REPO / "cleanba/cleanba_ppo.py", *SMALL, "--total-timesteps", 320, "--upload-model", *flags]
    return run_python(tmp_path, *command, base=base, **{"JAX_NUM_CPU_DEVICES": "1"} | env)


def test_everything_is_uploaded_and_can_be_evaluated_from_the_hub(tmp_path, hub):
    env = client_env(tmp_path, hub.address)
    done = train_and_upload(tmp_path, env, "--capture-video", "--hf-entity", "some-team")
    assert done.returncode == 0, done.stderr
    repo_id = "some-team/CartPole-v1-cleanba_ppo-seed1"
    assert f"uploaded to {hub.address}/{repo_id}" in done.stdout
    (run_dir,) = (tmp_path / "runs").iterdir()
    uploaded = {path.name: path.read_bytes() for path in (hub.folder / repo_id).iterdir()}
    local = {path.name: path.read_bytes() for path in run_dir.iterdir() if path.is_file()}
    assert uploaded == {name: content for name, content in local.items() if name != "finished.json"}
    events = next(name for name in uploaded if name.startswith("events.out.tfevents."))
    assert uploaded.keys() == {
        events,
        "README.md",
        "args.json",
        "cleanba_ppo.cleanrl_model",
        "evaluation.json",
        "learning_curve.png",
        "metrics.jsonl",
        "replay.mp4",
    }
    assert b"eval/episodic_return" in uploaded[events]
    assert not any(TOKEN.encode() in content for content in uploaded.values())

    evaluated = cleanba_eval(tmp_path, repo_id, **env)
    assert evaluated.returncode == 0, evaluated.stderr
    evaluation = next(line for line in done.stdout.splitlines() if line.startswith("evaluation: "))
    assert evaluated.stdout.splitlines()[1] == evaluation.removeprefix("evaluation: ")
    assert load_model(hub.folder / repo_id / "cleanba_ppo.cleanrl_model").steps == 320

    again = train_and_upload(tmp_path, env, "--hf-entity", "some-team")  # into the same repository
    assert again.returncode == 0 and "uploaded to" in again.stdout, again.stderr
    newest = max((tmp_path / "runs").iterdir())
    on_hub = {path.name for path in (hub.folder / repo_id).iterdir()}
    only_local = {"checkpoints", "finished.json"}
    assert on_hub == {path.name for path in newest.iterdir()} - only_local and "replay.mp4" not in on_hub


def test_without_an_entity_the_owner_of_the_token_gets_it(tmp_path, hub):
    done = train_and_upload(tmp_path, client_env(tmp_path, hub.address))
    assert f"uploaded to {hub.address}/somebody/CartPole-v1-cleanba_ppo-seed1" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("token", "message"),
    [
        (None, "--upload-model needs a Hugging Face token, and there is none; run `hf auth login`"),
        ("hf_wrong", "--upload-model: the Hugging Face Hub rejects the token"),
        (READING_TOKEN, "--upload-model needs a token with write access, this one is read-only"),
    ],
)
def test_without_a_valid_token_nothing_is_trained(tmp_path, hub, token, message):
    done = train_and_upload(tmp_path, client_env(tmp_path, hub.address, token))
    assert done.returncode == 2
    assert message in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_run_whose_upload_fails_keeps_its_model_and_reports_it(tmp_path):
    done = train_and_upload(tmp_path, client_env(tmp_path, "http://127.0.0.1:9"))  # nothing listens there
    assert done.returncode == 0
    assert "the Hugging Face Hub does not answer" in done.stderr
    assert "the upload failed (ConnectError: " in done.stderr
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert load_model(run_dir / "cleanba_ppo.cleanrl_model").steps == 320
    assert f"hf upload CartPole-v1-cleanba_ppo-seed1 runs/{run_dir.name}" in done.stderr
    assert "Traceback" not in done.stderr
    card = (run_dir / "README.md").read_text()  # that command would upload it
    assert "model-index" in card and "cleanba eval YOUR-NAME/CartPole-v1-cleanba_ppo-seed1" in card


def test_a_repository_that_does_not_exist(tmp_path, hub):
    done = cleanba_eval(tmp_path, "somebody/nothing", **client_env(tmp_path, hub.address))
    assert done.returncode == 2
    message = "error: somebody/nothing is not a local file, and cannot be downloaded from the Hub: "
    assert message in done.stderr


def test_the_code_in_the_card_runs(tmp_path):
    model = make_model()
    save_model(tmp_path / "cleanba_ppo.cleanrl_model", model)
    card = model_card(model, str(tmp_path), None)
    code = card.split("```python\n")[1].split("```")[0]
    variables = {"obs": np.zeros((3, *model.env.obs.shape), model.env.obs.dtype)}
    exec(code, variables)
    assert variables["action"].shape == (3,) and set(variables["action"].tolist()) <= {0, 1}


def test_the_card_has_the_evaluation_metadata_of_the_hub():
    evaluation = Evaluation("CartPole-v1", 1, [Episode(10.0, 10), Episode(20.0, 20)])
    card = model_card(make_model(), "somebody/a-model", evaluation)
    _, metadata, text = card.split("---\n", 2)
    metadata = yaml.safe_load(metadata)
    (model,) = metadata["model-index"]
    (result,) = model["results"]
    assert model["name"] == "cleanba_ppo"
    assert result["task"]["type"] == "reinforcement-learning"
    assert result["dataset"] == {"name": "CartPole-v1", "type": "CartPole-v1"}
    assert result["metrics"][0]["type"] == "mean_reward"
    assert result["metrics"][0]["value"] == "15.00 +/- 5.00"
    assert {"reinforcement-learning", "CartPole-v1"} <= set(metadata["tags"])
    assert "cleanba eval somebody/a-model" in text and 'find_model("somebody/a-model")' in text
    assert "model-index" not in model_card(make_model(), "somebody/a-model", None)


def test_repository_names(tmp_path, hub):
    assert repo_name(make_model(exp_name="my run").args) == "CartPole-v1-my-run-seed1"
    assert repo_name(make_model(hf_entity="team").args) == "team/CartPole-v1-cleanba_ppo-seed1"
    done = train_and_upload(tmp_path, client_env(tmp_path, hub.address), "--hf-entity", "my team")
    assert done.returncode == 2 and "choose another --exp-name or --hf-entity" in done.stderr
    assert not (tmp_path / "runs").exists()
