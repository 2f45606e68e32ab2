"""Models on the Hugging Face Hub: looking before a run, uploading after it, fetching them again."""

import json
import re
from pathlib import Path
from typing import Any

from cleanba.sebulba.args import RunArgs, UsageError, file_name
from cleanba.sebulba.command import first_line, need_extra, say
from cleanba.sebulba.evaluate import Evaluation
from cleanba.sebulba.model import SUFFIX, Model

UPLOADED = [
    f"*{SUFFIX}",
    "README.md",
    "args.json",
    "evaluation.json",
    "metrics.jsonl",
    "events.out.tfevents.*",
    "replay.mp4",  # the name that the Hub shows as the agent's video
    "learning_curve.png",
]

CARD = """# {algorithm} playing {env_id}

An agent trained for {steps:,} environment steps by Cleanba, seed {seed}.

{evaluation}

## Evaluate

```
cleanba eval {repo_id}
cleanba eval {repo_id} --episodes 100 --seed 2 --video
```

## Load

```python
from cleanba.sebulba.hub import find_model
from cleanba.sebulba.model import load_model

model = load_model(find_model("{repo_id}"))
logits, value = model.policy.apply(model.params, obs)  # obs: {obs}
```

The file `{file}` is in safetensors format and executes nothing when it is loaded.

## Arguments

`args.json` also has the layout, the machine and every size that follows from these.

```json
{args}
```
"""


def check_upload(args: RunArgs) -> None:
    """Before a run: no token, or one that is refused, would waste it."""
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
        raise UsageError(f"{flag} needs a token of the Hugging Face Hub, and there is none; {fix}")
    try:
        user = huggingface_hub.whoami()
    except Exception as error:
        if isinstance(error, HfHubHTTPError) and error.response.status_code in (401, 403):
            raise UsageError(f"{flag}: the Hugging Face Hub refuses the token; {fix}") from error
        say(f"the Hugging Face Hub does not answer ({first_line(error)}); the upload is tried later")
        return
    if user.get("auth", {}).get("accessToken", {}).get("role") == "read":
        raise UsageError(f"{flag} needs a token that may write, this one may only read; {fix}")


def repo_name(args: RunArgs) -> str:
    name = file_name(f"{args.env_id}-{args.exp_name}-seed{args.seed}").replace("+", "-")
    return f"{args.hf_entity}/{name}" if args.hf_entity else name


def upload(run_dir: Path, model: Model, evaluation: Evaluation | None) -> str:
    """What the run left, with a card; the address it has then."""
    from huggingface_hub import HfApi
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    card = run_dir / "README.md"
    hoped_for = repo_name(model.args) if model.args.hf_entity else f"YOUR-NAME/{repo_name(model.args)}"
    card.write_text(model_card(model, hoped_for, evaluation))  # there even if the Hub does not answer
    api = HfApi()
    repo = api.create_repo(repo_name(model.args), exist_ok=True)
    card.write_text(model_card(model, repo.repo_id, evaluation))
    api.upload_folder(
        repo_id=repo.repo_id,
        folder_path=run_dir,
        allow_patterns=UPLOADED,
        delete_patterns=UPLOADED,  # nothing stays of a run that was uploaded there before
        commit_message=f"{model.args.exp_name} on {model.args.env_id}, {model.steps:,} steps",
    )
    return str(repo)


def model_card(model: Model, repo_id: str, evaluation: Evaluation | None) -> str:
    """With the metadata from which the Hub makes its evaluation results and leaderboards."""
    from huggingface_hub import EvalResult, ModelCardData

    args, env = model.args, model.env
    results: Any = None
    if evaluation:
        scores = evaluation.scores()
        mean, std = scores["episodic_return"], scores["episodic_return_std"]
        result = EvalResult(
            task_type="reinforcement-learning",
            task_name="reinforcement-learning",
            dataset_type=env.env_id,
            dataset_name=env.env_id,
            metric_type="mean_reward",
            metric_name="mean_reward",
            metric_value=f"{mean:.2f} +/- {std:.2f}",
            verified=False,
        )
        results = [result]
    metadata = ModelCardData(
        library_name="cleanba",
        model_name=args.exp_name,
        tags=[env.env_id, "deep-reinforcement-learning", "reinforcement-learning", "custom-implementation"],
        eval_results=results,
    )
    text = CARD.format(
        algorithm=args.exp_name,
        env_id=env.env_id,
        steps=model.steps,
        seed=args.seed,
        evaluation=evaluation or "It was not evaluated.",
        repo_id=repo_id,
        obs=f"{env.obs_dtype.name} [batch, {', '.join(map(str, env.obs_shape))}]",
        file=f"{args.exp_name}{SUFFIX}",
        args=json.dumps(vars(args), indent=2),
    )
    return f"---\n{metadata.to_yaml()}\n---\n\n{text}"


def find_model(name: str) -> Path:
    """A file, a run's folder, or a repository on the Hub."""
    path = Path(name)
    if path.is_file():
        return path
    if path.is_dir():
        return path / _only_model([p.name for p in path.iterdir()], name, "train with --save-model")
    is_hub_id = re.fullmatch(r"[\w.-]+/[\w.-]+", name) and not name.endswith(SUFFIX)
    if not is_hub_id or path.parent.is_dir():  # a typo in a path here is not a question to the Hub
        raise UsageError(f"{name} does not exist")
    need_extra(f"{name} is not a file here, and the Hub", "huggingface_hub", "hub")
    from huggingface_hub import HfApi

    try:
        file = _only_model(HfApi().list_repo_files(name), name, "upload one with --upload-model")
        return Path(HfApi().hf_hub_download(name, file))
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f"{name} is not a file here, and cannot be fetched from the Hub: {first_line(error)}"
        ) from error


def _only_model(names: list[str], where: str, fix: str) -> str:
    models = [name for name in names if name.endswith(SUFFIX)]
    if not models:
        raise UsageError(f"{where} holds no {SUFFIX} file; {fix}")
    if len(models) > 1:
        raise UsageError(f"{where} holds several models; name one of {', '.join(sorted(models))}")
    return models[0]
