"""The algorithms by name. A user's own file is as good as ours: a .py file with `Args` and
`make_algorithm`."""

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


def load_algorithm(name: str) -> Any:
    """Its module: of one of the names, or of a .py file, which is executed."""
    if name in ALGORITHMS:
        return import_module(ALGORITHMS[name])
    path = Path(name).resolve()
    if path.suffix != ".py":
        raise UsageError(f"there is no algorithm {name!r}; give {', '.join(ALGORITHMS)} or a .py file")
    name_here = f"cleanba_file_{path.stem}_{crc32(str(path).encode()):08x}"  # clashes with no module
    spec = spec_from_file_location(name_here, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise UsageError(f"{name} does not exist; give the .py file of an algorithm")
    module = module_from_spec(spec)
    sys.modules[name_here] = module  # dataclasses look their module up there
    sys.path.insert(0, str(path.parent))  # as for `python FILE`: it may import what lies beside it
    spec.loader.exec_module(module)
    for needed in ("Args", "make_algorithm"):
        if not hasattr(module, needed):
            raise UsageError(f"{name} has no {needed}, so it is no algorithm; see examples/a2c.py")
    return module


def source_digest(make_algorithm: Callable[..., Any]) -> str:
    """Of the file that has it: the processes of a job must run the same."""
    file = getattr(sys.modules.get(make_algorithm.__module__), "__file__", None)
    return f"{crc32(Path(file).read_bytes()):08x}" if file else ""


def name_of(make_algorithm: Callable[..., Any]) -> str:
    """One of the names, or the name of the file that has it."""
    module = make_algorithm.__module__
    file = Path(getattr(sys.modules.get(module), "__file__", None) or module)
    for name, ours in ALGORITHMS.items():
        if module == ours or file == Path(__file__).parent / f"{ours.split('.')[1]}.py":
            return name
    return file.name
