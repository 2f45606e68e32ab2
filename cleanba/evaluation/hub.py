"""Models on the Hugging Face Hub: checks before a run, upload after it, download for an evaluation."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import jax

from cleanba.algorithms import ALGORITHMS
from cleanba.config.errors import UsageError
from cleanba.config.flags import RunArgs
from cleanba.evaluation.evaluate import Evaluation
from cleanba.evaluation.model import SUFFIX, Model
from cleanba.runtime.command import need_extra
from cleanba.runtime.files import atomic_write, file_name
from cleanba.runtime.messages import first_line, printable, say

UPLOADED = ["README.md", "args.json", "evaluation.json", "metrics.jsonl", "learning_curve.png", f"*{SUFFIX}"]
UPLOADED += ["events.out.tfevents.*", "replay.mp4"]  # the Hub shows replay.mp4 as the agent's video

CARD = """# {args.exp_name} playing {env.env_id}

An agent trained by Cleanba for {steps:,} environment steps with seed {args.seed}.

{evaluation}

## Evaluate

```
cleanba eval {repo_id}{algorithm_flag}
cleanba eval {repo_id}{algorithm_flag} --episodes 100 --seed 2 --video
```

## Load

```python
import jax
import numpy as np
from cleanba.evaluation.hub import find_model
from cleanba.evaluation.model import load_model

model = load_model(find_model("{repo_id}"){algorithm_argument})
rows = np.arange(len(obs), dtype=np.int32)  # obs: {obs}
state = model.algorithm.initial_state(len(obs))
action, state = model.algorithm.play(
    jax.random.key(0), model.published, obs, state, rows == rows, rows, rows, greedy=True
)
```

The file `{args.exp_name}.cleanrl_model` is in safetensors format; loading it executes nothing.

## Arguments

`args.json` also has the layout, the machine and every size derived from these.

```json
{flags}
```
"""


def check_upload(args: RunArgs) -> None:
    """Before a run: a missing or rejected token would waste it."""
    flag = "--upload-model"
    need_extra(flag, "huggingface_hub", "hub")
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repo_name(args))
    except HFValidationError as error:
        raise UsageError(f"{flag}: {first_line(error)}; choose another --exp-name or --hf-entity") from error
    fix = "run `hf auth login` or set HF_TOKEN"
    if huggingface_hub.get_token() is None:
        raise UsageError(f"{flag} needs a Hugging Face token, and there is none; {fix}")
    try:
        user = huggingface_hub.whoami()
    except Exception as error:
        if isinstance(error, HfHubHTTPError) and error.response.status_code in (401, 403):
            raise UsageError(f"{flag}: the Hugging Face Hub rejects the token; {fix}") from error
        say(f"the Hugging Face Hub does not answer ({first_line(error)}); the upload is still tried later")
        return
    if user.get("auth", {}).get("accessToken", {}).get("role") == "read":
        raise UsageError(f"{flag} needs a token with write access, this one is read-only; {fix}")


def repo_name(args: RunArgs) -> str:
    name = file_name(f"{args.env_id}-{args.exp_name}-seed{args.seed}").replace("+", "-")
    return f"{args.hf_entity}/{name}" if args.hf_entity else name


def upload(run_dir: Path, model: Model, evaluation: Evaluation | None) -> str:
    """Upload the run's files with a model card; returns the repository's URL."""
    from huggingface_hub import HfApi
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    card = run_dir / "README.md"
    expected = repo_name(model.args) if model.args.hf_entity else f"YOUR-NAME/{repo_name(model.args)}"
    atomic_write(
        card, model_card(model, expected, evaluation).encode()
    )  # so that it exists if the Hub does not answer
    api = HfApi()
    repo = api.create_repo(repo_name(model.args), exist_ok=True)
    atomic_write(card, model_card(model, repo.repo_id, evaluation).encode())
    api.upload_folder(
        repo_id=repo.repo_id,
        folder_path=run_dir,
        allow_patterns=UPLOADED,
        delete_patterns=UPLOADED,  # removes the files of an earlier run with the same name
        commit_message=f"{model.args.exp_name} on {model.args.env_id}, {model.steps:,} steps",
    )
    return str(repo)


def model_card(model: Model, repo_id: str, evaluation: Evaluation | None) -> str:
    """Its metadata feeds the Hub's evaluation results and leaderboards."""
    from huggingface_hub import EvalResult, ModelCardData

    args, env = model.args, model.env
    results: Any = None
    if evaluation:
        scores = evaluation.scores()
        value = f"{scores['episodic_return']:.2f} +/- {scores['episodic_return_std']:.2f}"
        task, metric = "reinforcement-learning", "mean_reward"
        names: Any = dict(task_name=task, dataset_name=env.env_id, metric_name=metric)
        names |= dict(task_type=task, dataset_type=env.env_id, metric_type=metric)
        results = [EvalResult(**names, metric_value=value, verified=False)]
    tags = [env.env_id, "deep-reinforcement-learning", "reinforcement-learning", "custom-implementation"]
    metadata = ModelCardData(
        library_name="cleanba", model_name=args.exp_name, tags=tags, eval_results=results
    )
    ours = model.algorithm_name in ALGORITHMS
    text = CARD.format(
        args=args,
        env=env,
        steps=model.steps,
        evaluation=evaluation or "It was not evaluated.",
        repo_id=repo_id,
        obs=", ".join(
            f"{x.dtype.name} [batch, {', '.join(map(str, x.shape))}]" for x in jax.tree.leaves(env.obs)
        ),
        flags=json.dumps(vars(args), indent=2),
        algorithm_flag="" if ours else f" --algorithm {shlex.quote(model.algorithm_name)}",
        algorithm_argument="" if ours else f", {model.algorithm_name!r}",
    )
    return f"---\n{metadata.to_yaml()}\n---\n\n{text}"


def find_model(name: str) -> Path:
    """`name` is a model file, a run folder, or a repository on the Hub."""
    path = Path(name)
    if path.is_file():
        return path
    if path.is_dir():
        return path / _only_model([p.name for p in path.iterdir()], name, "train with --save-model")
    is_hub_id = re.fullmatch(r"[\w.-]+/[\w.-]+", name) and not name.endswith(SUFFIX)
    if not is_hub_id or path.parent.is_dir():  # do not ask the Hub about a mistyped local path
        raise UsageError(f"{name} does not exist")
    need_extra(f"{name} is not a local file, and the Hub", "huggingface_hub", "hub")
    from huggingface_hub import HfApi

    try:
        file = _only_model(HfApi().list_repo_files(name), name, "upload one with --upload-model")
        return Path(HfApi().hf_hub_download(name, file))
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f"{name} is not a local file, and cannot be downloaded from the Hub: {first_line(error)}"
        ) from error


def _only_model(names: list[str], where: str, fix: str) -> str:
    models = [name for name in names if name.endswith(SUFFIX)]
    if not models:
        raise UsageError(f"{where} has no {SUFFIX} file; {fix}")
    if len(models) > 1:
        found = printable(", ".join(sorted(models)))
        raise UsageError(f"{where} has several models; give one of {found}")
    return models[0]
