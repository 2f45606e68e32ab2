"""The algorithms by name. A user's own file is as good as ours: a .py file with `Args` and
`make_algorithm`."""

import os
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any
from zlib import crc32

from cleanba.config.errors import UsageError

ALGORITHMS = {
    "ppo": "cleanba.cleanba_ppo",
    "impala": "cleanba.cleanba_impala",
}
PRESETS = {  # the same algorithms with other defaults; each module has ARGS, and says what it is for
    "ppo-fit": "cleanba.cleanba_ppo_fit",
    "ppo-atari-fast": "cleanba.cleanba_ppo_atari_fast",
    "ppo-continuous": "cleanba.cleanba_ppo_continuous",
    "ppo-procgen": "cleanba.cleanba_ppo_procgen",
    "ppo-envpool-impala-atari-wrapper": "cleanba.cleanba_ppo_envpool_impala_atari_wrapper",
    "ppo-envpool-impala-atari-wrapper-large": "cleanba.cleanba_ppo_envpool_impala_atari_wrapper_large",
    "ppo-envpool-machado-atari-wrapper": "cleanba.cleanba_ppo_envpool_machado_atari_wrapper",
    "impala-envpool-impala-atari-wrapper": "cleanba.cleanba_impala_envpool_impala_atari_wrapper",
    "impala-envpool-machado-atari-wrapper": "cleanba.cleanba_impala_envpool_machado_atari_wrapper",
}


def load_algorithm(name: Any) -> Any:
    """Its module: of one of the names, or of a .py file, which is executed. A module is its own."""
    if isinstance(name, str) and name in ALGORITHMS:
        return import_module(ALGORITHMS[name])
    module = load_file(name) if isinstance(name, str | Path) else name
    for needed in ("Args", "make_algorithm"):
        if not hasattr(module, needed):
            raise UsageError(f"{name} has no {needed}, so it is no algorithm; see examples/a2c.py")
    return module


def load_file(name: str | Path) -> Any:
    path = Path(name).resolve()
    if path.suffix != ".py":
        raise UsageError(f"there is no algorithm {name!r}; give {', '.join(ALGORITHMS)} or a .py file")
    check_utf8(path)
    name_here = f"cleanba_file_{path.stem}_{crc32(str(path).encode()):08x}"  # clashes with no module
    spec = spec_from_file_location(name_here, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise UsageError(f"{name} does not exist; give the .py file of an algorithm")
    module = module_from_spec(spec)
    sys.modules[name_here] = module  # dataclasses look their module up there
    sys.path.insert(0, str(path.parent))  # as for `python FILE`: it may import what lies beside it
    spec.loader.exec_module(module)
    return module


def check_utf8(file: str | Path | None) -> None:
    """JAX notes for each operation which line of which file it comes from, and fails on other names; so does
    a model's header, which names the file."""
    try:
        str(file).encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"{file} is not UTF-8, and JAX runs no code from such a path; rename the file or its folder"
        ) from None


def module_of(args: type, make_algorithm: Callable[..., Any]) -> str:
    """The module of an algorithm. It may have `make_algorithm` or `Args` from another one's file."""
    for module in (cls.__module__ for cls in args.__mro__):
        if getattr(sys.modules.get(module), "make_algorithm", None) is make_algorithm:
            return module
    return make_algorithm.__module__


def source_digest(args: type, make_algorithm: Callable[..., Any]) -> str:
    """Of the algorithm's file: the processes of a job must run the same."""
    file = getattr(sys.modules.get(module_of(args, make_algorithm)), "__file__", None)
    return f"{crc32(Path(file).read_bytes()):08x}" if file else ""


def name_of(args: type, make_algorithm: Callable[..., Any]) -> str:
    """One of the names, or the path from the current folder to the algorithm's file: commands that are shown
    name it, and work from here."""
    module = module_of(args, make_algorithm)
    file = getattr(sys.modules.get(module), "__file__", None)
    check_utf8(file)
    for name, ours in ALGORITHMS.items():
        if module == ours or (file and Path(file) == Path(__file__).parent / f"{ours.split('.')[1]}.py"):
            return name
    try:
        return os.path.relpath(file) if file else module
    except OSError:  # the current folder is gone
        return str(file)
