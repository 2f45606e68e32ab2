"""A trained model in one file of safetensors: params, arguments, environment. Loading executes nothing."""

import dataclasses
import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from cleanba.sebulba.algorithm import Params
from cleanba.sebulba.args import RunArgs, UsageError, with_tuples
from cleanba.sebulba.envs import ATARI_PRESETS, EnvSpec, describe
from cleanba.sebulba.files import named_tensors, tensor_names, write_whole
from cleanba.sebulba.networks import Policy, make_policy

FORMAT = 1  # of the file; raised when older code could not read what newer code writes
SUFFIX = ".cleanrl_model"


class Model(NamedTuple):
    args: RunArgs  # the flags that every algorithm has
    env: EnvSpec
    steps: int  # that it was trained for
    params: Params  # on the host

    @property
    def policy(self) -> Policy:
        return make_policy(self.args, self.env)


def save_model(path: Path, model: Model) -> None:
    env = model.env._asdict() | {"obs_dtype": model.env.obs_dtype.name}
    metadata = {
        "format": str(FORMAT),
        "args": json.dumps(vars(model.args)),
        "env": json.dumps(env),
        "steps": str(model.steps),
    }
    write_whole(path, save(named_tensors(model.params), metadata))


def load_model(path: Path) -> Model:
    try:
        with safe_open(path, framework="numpy") as file:
            return _read(path, file)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
    except SafetensorError as error:
        raise UsageError(f"{path} is damaged, perhaps cut off, or not a model ({error})") from error


def _read(path: Path, file: Any) -> Model:
    metadata = file.metadata() or {}
    try:
        version = int(metadata["format"])
    except (KeyError, ValueError):
        raise UsageError(f"{path} is a safetensors file, but not a Cleanba model") from None
    if version > FORMAT:
        raise UsageError(
            f"{path} was written by a newer Cleanba (format {version}, this one reads up to {FORMAT}); "
            "update it"
        )
    try:
        args = _run_args(json.loads(metadata["args"]))
        env = _env_spec(json.loads(metadata["env"]))
        template = jax.eval_shape(make_policy(args, env).init, jax.random.key(0))
        steps = int(metadata["steps"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"{path} has a header that is damaged ({error!r})") from error
    leaves, tree = jax.tree.flatten(template)
    expected = dict(zip(tensor_names(template), (leaf.shape for leaf in leaves), strict=True))
    found = {name: _shape(file.get_slice(name)) for name in file.keys()}  # noqa: SIM118
    if found != expected:
        odd = sorted(name for name in expected | found if expected.get(name) != found.get(name))[0]
        raise UsageError(
            f"{path} does not hold the params of its own arguments: {odd} should be "
            f"{expected.get(odd, 'absent')}, is {found.get(odd, 'absent')}"
        )
    params = jax.tree.unflatten(tree, [file.get_tensor(name) for name in expected])
    return Model(args, env, steps, params)


def check_environment(model: Model) -> None:
    """That the environment here is the one that the model was trained in."""
    unknown = model.env.options.keys() - ATARI_PRESETS["machado"].keys()
    if unknown:
        raise UsageError(f"the model's environment has options that are not known here: {', '.join(unknown)}")
    try:
        here = describe(model.env.env_id, model.env.options)
    except (UsageError, TypeError) as error:  # TypeError: EnvPool does not know an option
        raise UsageError(f"the model cannot be played with the EnvPool here: {error}") from error
    if here != model.env:
        raise UsageError(
            f"the model was trained in {_in_words(model.env)}; the EnvPool here has {_in_words(here)}"
        )


def _in_words(env: EnvSpec) -> str:
    shape = "x".join(map(str, env.obs_shape))
    return f"{env.env_id} with {env.num_actions} actions and {shape} {env.obs_dtype.name} observations"


def _shape(tensor: Any) -> tuple[int, ...] | str:
    """Params are float32; another type is told in place of the shape."""
    return tuple(tensor.get_shape()) if tensor.get_dtype() == "F32" else tensor.get_dtype()


def _run_args(flags: dict[str, Any]) -> RunArgs:
    """Without the flags of one algorithm."""
    known = {field.name for field in dataclasses.fields(RunArgs)}
    return RunArgs(**{name: value for name, value in with_tuples(flags).items() if name in known})


def _env_spec(env: dict[str, Any]) -> EnvSpec:
    return EnvSpec(**env | {"obs_shape": tuple(env["obs_shape"]), "obs_dtype": np.dtype(env["obs_dtype"])})
