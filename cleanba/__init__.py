"""Train deep-RL agents with the Sebulba architecture in JAX.

At the top are the things a user starts: the algorithms (cleanba_ppo.py, cleanba_impala.py), presets of their
hyper-parameters (cleanba_*_*.py), the other commands (cleanba_eval.py, cleanba_bench.py, …) and `cli.py`,
which gives each a name. `algorithms.py` is the registry. Everything else is in packages, and imports point
one way:

    config ← runtime ← envs ← agents ← sebulba ← evaluation ← records, distributed ← training ← bench,
    analysis

From Python (docs/python_api.md), what is in `__all__` is imported when it is first used: `import cleanba`
takes no time, and neither commands without jax nor worker processes import it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cleanba.analysis.run_records import Run as Run
    from cleanba.analysis.run_records import runs as runs
    from cleanba.api import Training as Training
    from cleanba.api import evaluate as evaluate
    from cleanba.api import load as load
    from cleanba.api import train as train
    from cleanba.config.errors import EnvError as EnvError
    from cleanba.config.errors import UsageError as UsageError
    from cleanba.evaluation.evaluate import Evaluation as Evaluation
    from cleanba.evaluation.policy import Policy as Policy
    from cleanba.evaluation.policy import PolicyState as PolicyState
    from cleanba.runtime.signals import Stopped as Stopped

_WHERE = {
    "EnvError": "config.errors",
    "Evaluation": "evaluation.evaluate",
    "Policy": "evaluation.policy",
    "PolicyState": "evaluation.policy",
    "Run": "analysis.run_records",
    "Stopped": "runtime.signals",
    "Training": "api",
    "UsageError": "config.errors",
    "evaluate": "api",
    "load": "api",
    "runs": "analysis.run_records",
    "train": "api",
}
__all__ = sorted(_WHERE)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'cleanba' has no attribute {name!r}")
    return getattr(import_module(f"cleanba.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
