"""What is known of a flag beside its type and default: marks in its annotation, where the flag stands.

gamma: Annotated[float, FRACTION] = 0.99
env_threads: Annotated[int | None, POSITIVE, CAN_CHANGE, CHANGES_NO_BIT] = None
"""

import inspect
import math
from typing import Any, NamedTuple


class Range(NamedTuple):
    """Of numbers; of a tuple, of each of its numbers. A flag without a range takes any finite number."""

    low: float
    high: float = math.inf
    above_low: bool = False  # `low` itself is too small

    def problem(self, number: float) -> str | None:
        """What is wrong with it, and the fix."""
        if self.low <= number <= self.high and not (self.above_low and number == self.low):
            return None
        if self.high < math.inf:
            return f"is out of range; give a number from {self.low} to {self.high}"
        if self.above_low:
            return f"is too small; give a number above {self.low}"
        return f"is negative; give {self.low} or more"


class Mark(NamedTuple):
    meaning: str


POSITIVE = Range(0, above_low=True)
NOT_NEGATIVE = Range(0)
FRACTION = Range(0, 1)
SEED = Range(0, 2**32 - 1)
CAN_CHANGE = Mark("a resumed run may have another value")
ONLY_LOGS = Mark(
    "it changes what is logged and saved, not what is learned; a resumed run may have another value"
)
CHANGES_NO_BIT = Mark("it changes how the result is computed, but not one bit of it")


def marks_of(args: type) -> dict[str, tuple[Any, ...]]:
    """Of each flag of a class of arguments. One that is only given another default keeps its marks; those of
    a whole group stand in its MARKS."""
    found: dict[str, tuple[Any, ...]] = {}
    for cls in reversed(args.__mro__):
        for name, annotation in inspect.get_annotations(cls, eval_str=True).items():
            if name == "MARKS":
                continue
            own = (*getattr(annotation, "__metadata__", ()), *cls.__dict__.get("MARKS", ()))
            replaced = Range if any(isinstance(mark, Range) for mark in own) else ()
            found[name] = (*(m for m in found.get(name, ()) if not isinstance(m, replaced)), *own)
    return found


def marked(args: type, *marks: Mark) -> set[str]:
    """The names of the flags that have one of these marks."""
    return {
        name for name, own in marks_of(args).items() if set(marks) & {m for m in own if isinstance(m, Mark)}
    }
