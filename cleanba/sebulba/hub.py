"""Models on the Hugging Face Hub: looking before a run, uploading after it."""

import json
import re
import sys
from pathlib import Path
from typing import Any

from cleanba.sebulba.args import RunArgs, UsageError
from cleanba.sebulba.command import first_line, need_extra
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
from cleanba.sebulba.model import find_model, load_model

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


def check_token(flag: str) -> None:
    """Before a run: no token, or one that is refused, would waste it."""
    need_extra(flag, "huggingface_hub", "hub")
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError

    fix = "run `hf auth login` or set HF_TOKEN"
    if huggingface_hub.get_token() is None:
        raise UsageError(f"{flag} needs a token of the Hugging Face Hub, and there is none; {fix}")
    try:
        huggingface_hub.whoami()
    except Exception as error:
        if isinstance(error, HfHubHTTPError) and error.response.status_code == 401:
            raise UsageError(f"{flag}: the Hugging Face Hub refuses the token; {fix}") from error
        print(f"the Hub does not answer ({first_line(error)}); the upload is tried later", file=sys.stderr)


def repo_name(args: RunArgs) -> str:
    name = re.sub(r"[^\w.-]", "-", f"{args.env_id}-{args.exp_name}-seed{args.seed}")
    return f"{args.hf_entity}/{name}" if args.hf_entity else name


def upload(run_dir: Path, model: Model, evaluation: Evaluation | None) -> str:
    """What the run left, with a card; the address it has then."""
    from huggingface_hub import HfApi
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    api = HfApi()
    repo = api.create_repo(repo_name(model.args), exist_ok=True)
    (run_dir / "README.md").write_text(model_card(model, repo.repo_id, evaluation))
    api.upload_folder(
        repo_id=repo.repo_id,
        folder_path=run_dir,
        allow_patterns=UPLOADED,
        delete_patterns="events.out.tfevents.*",  # of a run that was uploaded there before
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
