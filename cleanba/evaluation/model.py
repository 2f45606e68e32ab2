"""A trained model in one safetensors file: params, arguments, environment. Loading executes nothing."""

import dataclasses
import json
import os
import shlex
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from cleanba.agents.algorithm import Algorithm, Extra, Params, Published
from cleanba.algorithms import ALGORITHMS, load_algorithm
from cleanba.config.batch_plan import BatchPlan
from cleanba.config.errors import UsageError
from cleanba.config.flags import RunArgs, check_types
from cleanba.config.topology import Topology
from cleanba.envs.factory import NAMES, describe
from cleanba.envs.spec import ArraySpec, EnvSpec, env_to_json
from cleanba.evaluation.header import FORMAT, Header, damaged, describe_env, read_header
from cleanba.runtime.files import atomic_write, open_regular
from cleanba.runtime.messages import printable
from cleanba.runtime.tensors import check_tensors, named_leaves, named_tensors, slice_type, tensor_type

SUFFIX = ".cleanrl_model"
PROBE_ROWS = 16  # observations in a call, to which a model remembers its policy's answers
PROBE_SCALES = (1.0, 4.0, 0.25, 16.0)  # of these observations, one call each; models of before have the first
PROBE_TOLERANCE = 0.02  # in deviations of an answer over its call: another device rounds differently
PROBE_ROUNDING = {"float32": 1e-4, "bfloat16": 1e-2}  # of an answer itself, by --compute-dtype
PROBE_AGREEMENT = 0.75  # share of the rows that must agree: a rounded number may flip an action


class Model(NamedTuple):
    args: RunArgs
    env: EnvSpec
    steps: int  # environment steps trained
    params: Params  # on the host
    algorithm: Algorithm  # whose policy it is; not in the file
    algorithm_name: str  # one of ALGORITHMS, or the path of the user's file
    extra: Extra = ()  # on the host

    @property
    def published(self) -> Published:
        return Published(self.params, self.extra)


def save_model(path: Path, model: Model, *, with_probe: bool = True) -> None:
    """Without a probe nothing is computed, for when there is no time or no working device."""
    metadata = {
        "format": str(FORMAT),
        "algorithm": model.algorithm_name,
        "args": json.dumps(vars(model.args)),
        "env": json.dumps(env_to_json(model.env)),
        "steps": str(model.steps),
    }
    if with_probe:
        metadata["answers"] = json.dumps([x.tolist() for x in probe(model)])
    extra = {f"extra/{name}": x for name, x in named_tensors(model.extra).items()}
    atomic_write(path, save(named_tensors(model.params) | extra, metadata))


def probe(model: Model) -> list[np.ndarray]:
    """What the policy answers to fixed random observations [calls * B, ...]: greedy actions, sampled actions,
    and what an actor writes down with these, such as their log-probabilities. A policy with a memory has the
    calls before in it. On the CPU, which every machine has."""
    rng, rows = np.random.default_rng(0), np.arange(PROBE_ROWS, dtype=np.int32)
    algorithm, key = model.algorithm, jax.random.key(0)

    def observe(spec: ArraySpec, scale: float) -> np.ndarray:
        obs = spec.random(rng, PROBE_ROWS)
        return obs * np.asarray(scale, obs.dtype) if obs.dtype.kind == "f" else obs

    @jax.jit
    def answer(published: Published, obs: Any, state: Any, start: Any, step: Any) -> Any:
        inputs: Any = (key, published, obs, state, start, rows, step)
        decision, state = algorithm.act(*inputs)
        return (algorithm.play(*inputs, greedy=True)[0], decision), state

    found = []
    with jax.default_device(_cpu()), jax.default_matmul_precision("highest"):
        published, state = jax.device_put((model.published, algorithm.initial_state(PROBE_ROWS)))
        for call, scale in enumerate(PROBE_SCALES):
            obs = jax.tree.map(partial(observe, scale=scale), model.env.obs)
            start = (rows == 0) & (call == 0)
            answers, state = answer(published, obs, state, start, rows + call * PROBE_ROWS)
            found.append([np.asarray(x, np.float64) for x in jax.tree.leaves(jax.device_get(answers))])
    return [np.concatenate(leaf) for leaf in zip(*found, strict=True)]


def _cpu() -> jax.Device | None:
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS leaves it out
        return None


def load_model(
    path: Path,
    algorithm: Any = None,
    env_options: dict[str, Any] | None = None,
    env_id: str | None = None,
    *,
    is_own: bool = False,
) -> Model:
    """With the `algorithm` that trained it: by default the one of ALGORITHMS that it names. The name of a
    file is never imported; the user must give that file, or its module. `env_options` go over the model's
    own, and `env_id` is the same environment by another name: a module that has it is imported only if the
    user names it. `is_own`: the user gives the class or function that makes the environment."""
    try:
        os.close(open_regular(path))
        with safe_open(path, framework="numpy") as file:
            header = read_header(path, file.metadata() or {}, env_options or {}, env_id, is_own=is_own)
            model = _read(path, file, header, algorithm)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
    except SafetensorError as error:
        what = f"{path} is damaged, perhaps truncated, or not a model"
        raise UsageError(f"{what} ({printable(str(error))})") from error
    if header.probe is not None and not _answers_as_before(path, header.probe, model):
        used = algorithm or model.algorithm_name
        raise UsageError(
            f"the policy of {used} answers differently from when {path} was saved; "
            "give the file that trained it with --algorithm"
        )
    return model


def _answers_as_before(path: Path, before: list[Any], model: Model) -> bool:
    try:
        now = [x[: len(before[0])] for x in probe(model)]
        return agree(before, now, PROBE_ROUNDING[model.args.compute_dtype])
    except (TypeError, ValueError, IndexError) as error:  # no arrays of numbers
        raise damaged(path, error) from error


def agree(before: list[Any], now: list[np.ndarray], rounding: float) -> bool:
    """Of two probes. What was written down with a sampled action is compared where the action is the same."""
    if [np.shape(x) for x in before] != [x.shape for x in now]:
        return False

    def rows_agree(a: Any, b: np.ndarray) -> np.ndarray:
        """A policy that is hardly trained answers nearly the same to everything: what counts is how far an
        answer is from the one before, next to how far those of its call are from each other."""
        was, now = (np.asarray(x, np.float64).reshape(-1, PROBE_ROWS, b[0].size) for x in (a, b))
        with np.errstate(invalid="ignore"):
            limit = PROBE_TOLERANCE * was.std(axis=1, keepdims=True) + rounding * np.abs(was)
            close = (was == now) | (np.abs(was - now) <= limit) | (np.isnan(was) & np.isnan(now))
        return close.all(axis=2).reshape(-1)

    greedy, same, *record = (rows_agree(a, b) for a, b in zip(before, now, strict=True))
    return all(rows.mean() >= PROBE_AGREEMENT for rows in (greedy, same, *(rows[same] for rows in record)))


def _read(path: Path, file: Any, header: Header, algorithm: Any) -> Model:
    name = header.algorithm
    if algorithm is None and name not in ALGORITHMS:
        shown = printable(name)
        raise UsageError(f"{path} was trained by {shown}; give that file: --algorithm {shlex.quote(shown)}")
    module = load_algorithm(algorithm or name)
    known = {field.name for field in dataclasses.fields(module.Args)}
    try:
        args = module.Args(**{name: value for name, value in header.flags.items() if name in known})
        check_types(args)
        topology = Topology(args.actor_device_ids, args.learner_device_ids).check_ids()
        plan = BatchPlan.create(args, topology)
    except (TypeError, ValueError, UsageError) as error:
        raise damaged(path, error) from error
    try:
        made = module.make_algorithm(args, header.env, plan)
        template = jax.eval_shape(made.init, jax.random.key(0))
    except (TypeError, ValueError, OverflowError) as error:
        if algorithm is not None:  # the user's own code may be what is wrong
            raise
        raise damaged(path, error) from error
    params, extra = _read_tensors(path, file, template)
    return Model(args, header.env, header.steps, params, made, name, extra)


def load_published(path: Path, fresh: Published) -> Published:
    """The params of a model, whichever algorithm trained it, if they have the names, shapes and types of
    those in `fresh`; its extra too, or else the fresh one. For a run that starts from them."""
    try:
        os.close(open_regular(path))
        with safe_open(path, framework="numpy") as file:
            found = {name: slice_type(file.get_slice(name)) for name in file.keys()}  # noqa: SIM118
            extra = {name: kind for name, kind in found.items() if name.startswith("extra/")}
            wanted = _types(Published((), fresh.extra))
            if wanted == extra:
                return _read_tensors(path, file, fresh)
            if any(name.startswith("extra/obs/") for name in extra):
                raise UsageError(
                    f"the policy of {path} has seen normalized observations; give the same flags: "
                    "--normalize-observations, and --normalize-rewards if it had that"
                )
            params = found.keys() - extra.keys()
            return Published(_read_tensors(path, file, Published(fresh.params), params).params, fresh.extra)
    except (OSError, SafetensorError) as error:
        reason = printable(str(error))
        raise UsageError(f"{path} cannot be read, or is not a model ({reason})") from error


def _types(template: Published) -> dict[str, str]:
    leaves = named_leaves(template.params) | {
        f"extra/{n}": x for n, x in named_leaves(template.extra).items()
    }
    return {name: tensor_type(leaf.dtype, leaf.shape) for name, leaf in leaves.items()}


def _read_tensors(path: Path, file: Any, template: Published, names: set[str] | None = None) -> Published:
    """All tensors in the file, or those of these names, which must be those of the template."""
    expected = _types(template)
    found = {printable(name): slice_type(file.get_slice(name)) for name in names or file.keys()}
    check_tensors(
        f"the params in {path} do not fit its arguments, or the algorithm's file has changed", found, expected
    )
    return jax.tree.unflatten(jax.tree.structure(template), map(file.get_tensor, expected))


def check_environment(model: Model) -> None:
    """The installed library must have the environment that the model was trained in."""
    library = NAMES.get(model.env.backend, model.env.backend)
    try:
        installed = describe(model.env)
    except UsageError as error:
        reason = "\n".join(map(printable, str(error).split("\n")))
        if ":" in model.env.env_id:  # the user has named it
            raise UsageError(reason) from error
        raise UsageError(f"the model's environment is not in the installed {library}: {reason}") from error
    if installed != model.env:
        raise UsageError(
            f"the model was trained in {describe_env(model.env)}; "
            f"the installed {library} has {describe_env(installed)}"
        )
