"""The real client of the Hugging Face Hub against a stub server."""

import os
import subprocess
import sys

import pytest
import yaml
from conftest import REPO
from hub_stub import READING_TOKEN, TOKEN, Hub
from test_evaluate import cleanba_eval
from test_model import make_model

from cleanba.sebulba.envs import Episode
from cleanba.sebulba.evaluate import Evaluation
from cleanba.sebulba.hub import model_card, repo_name
from cleanba.sebulba.model import load_model

SMALL = "--env-id CartPole-v1 --local-num-envs 4 --num-actor-threads 1 --num-steps 16 --total-timesteps 320"


@pytest.fixture
def hub(tmp_path):
    server = Hub(tmp_path / "hub")
    yield server
    server.shutdown()
    server.server_close()


def client_env(tmp_path, address, token=TOKEN):
    """What the client reads. A home of its own: no token or cache of the user's."""
    env = dict(HF_ENDPOINT=address, HF_HUB_DISABLE_XET="1", HF_HOME=str(tmp_path / "home"))
    return env | ({"HF_TOKEN": token} if token else {})


def train_and_upload(tmp_path, env, *flags):
    usual = {name: value for name, value in os.environ.items() if name != "HF_TOKEN"}
    return subprocess.run(
        [sys.executable, REPO / "cleanba/cleanba_ppo.py", *SMALL.split(), "--upload-model", *flags],
        cwd=tmp_path,
        env=usual | {"JAX_NUM_CPU_DEVICES": "1"} | env,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_everything_arrives_and_can_be_evaluated_from_there(tmp_path, hub):
    env = client_env(tmp_path, hub.address)
    done = train_and_upload(tmp_path, env, "--capture-video", "--hf-entity", "some-team")
    assert done.returncode == 0, done.stderr
    repo_id = "some-team/CartPole-v1-cleanba_ppo-seed1"
    assert f"uploaded to {hub.address}/{repo_id}" in done.stdout
    (run_dir,) = (tmp_path / "runs").iterdir()
    arrived = {path.name: path.read_bytes() for path in (hub.folder / repo_id).iterdir()}
    left = {path.name: path.read_bytes() for path in run_dir.iterdir() if path.is_file()}
    assert arrived == {name: content for name, content in left.items() if name != "finished.json"}
    events = next(name for name in arrived if name.startswith("events.out.tfevents."))
    assert arrived.keys() == {
        events,
        "README.md",
        "args.json",
        "cleanba_ppo.cleanrl_model",
        "evaluation.json",
        "learning_curve.png",
        "metrics.jsonl",
        "replay.mp4",
    }
    assert b"eval/episodic_return" in arrived[events]
    assert not any(TOKEN.encode() in content for content in arrived.values())

    shown = cleanba_eval(tmp_path, repo_id, **env)
    assert shown.returncode == 0, shown.stderr
    evaluation = next(line for line in done.stdout.splitlines() if line.startswith("evaluation: "))
    assert shown.stdout.splitlines()[1] == evaluation.removeprefix("evaluation: ")
    assert load_model(hub.folder / repo_id / "cleanba_ppo.cleanrl_model").steps == 320

    again = train_and_upload(tmp_path, env, "--hf-entity", "some-team")  # the same repository once more
    assert again.returncode == 0 and "uploaded to" in again.stdout, again.stderr
    newest = max((tmp_path / "runs").iterdir())
    left = {path.name for path in (hub.folder / repo_id).iterdir()}
    kept_here = {"checkpoints", "finished.json"}
    assert left == {path.name for path in newest.iterdir()} - kept_here and "replay.mp4" not in left


def test_without_an_entity_it_goes_to_the_user_of_the_token(tmp_path, hub):
    done = train_and_upload(tmp_path, client_env(tmp_path, hub.address))
    assert f"uploaded to {hub.address}/somebody/CartPole-v1-cleanba_ppo-seed1" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("token", "message"),
    [
        (
            None,
            "--upload-model needs a token of the Hugging Face Hub, and there is none; run `hf auth login`",
        ),
        ("hf_wrong", "--upload-model: the Hugging Face Hub refuses the token"),
        (READING_TOKEN, "--upload-model needs a token that may write, this one may only read"),
    ],
)
def test_without_a_token_nothing_is_trained(tmp_path, hub, token, message):
    done = train_and_upload(tmp_path, client_env(tmp_path, hub.address, token))
    assert done.returncode == 2
    assert message in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_run_that_fails_to_upload_keeps_its_model_and_says_so(tmp_path):
    done = train_and_upload(tmp_path, client_env(tmp_path, "http://127.0.0.1:9"))  # nobody listens there
    assert done.returncode == 0
    assert (
        "the Hugging Face Hub does not answer" in done.stderr
        and "the upload failed (ConnectError: " in done.stderr
    )
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert load_model(run_dir / "cleanba_ppo.cleanrl_model").steps == 320
    assert f"hf upload CartPole-v1-cleanba_ppo-seed1 runs/{run_dir.name}" in done.stderr
    assert "Traceback" not in done.stderr
    card = (run_dir / "README.md").read_text()  # that command would send it
    assert "model-index" in card and "cleanba eval YOUR-NAME/CartPole-v1-cleanba_ppo-seed1" in card


def test_a_repository_that_is_not_there(tmp_path, hub):
    shown = cleanba_eval(tmp_path, "somebody/nothing", **client_env(tmp_path, hub.address))
    assert shown.returncode == 2
    assert "error: somebody/nothing is not a file here, and cannot be fetched from the Hub: " in shown.stderr


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
