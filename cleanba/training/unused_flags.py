"""Flags that an algorithm of the user's own takes, as all algorithms do, but never looks at."""

import copy
import dataclasses
from typing import Any

from cleanba.config.errors import UsageError
from cleanba.config.flags import Network, Normalization, RunArgs, flag

NETWORK = {field.name for field in dataclasses.fields(Network)} | {"compute_dtype"}
NORMALIZATION = {field.name for field in dataclasses.fields(Normalization)}
ALL = "__dict__"  # what vars() reads


def watched(args: RunArgs) -> tuple[Any, set[str]]:
    """The same arguments, and a set of the names that are read of them from now on."""
    read = set[str]()

    def watch(self: Any, name: str) -> Any:
        read.add(name)
        return object.__getattribute__(self, name)

    same, cls = copy.copy(args), type(args)
    object.__setattr__(same, "__class__", type(cls.__name__, (cls,), {"__getattribute__": watch}))
    return same, read


def unread(args: RunArgs, read: set[str]) -> list[str]:
    """Flags of the network and of normalization that have been changed, and were not read. Whoever reads
    --network has Cleanba's networks, which know what each of theirs is for."""
    if ALL in read:
        return []
    default, known = type(args)(), read | (NETWORK if "network" in read else set())
    names = [field.name for field in dataclasses.fields(args) if field.name in NETWORK | NORMALIZATION]
    changed = (name for name in names if getattr(args, name) != getattr(default, name))
    # Whoever does not know of this one sees observations of more than one array.
    return [name for name in changed if name not in known | {"last_action_reward"}]


def refuse(names: list[str]) -> None:
    for name in names:
        raise UsageError(f"{flag(name)} has no effect in this algorithm; leave it out")
