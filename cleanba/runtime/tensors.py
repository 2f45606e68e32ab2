"""Names and types of the leaves of a pytree, as safetensors files and error messages have them."""

import math
from typing import Any

import jax
import numpy as np

from cleanba.config.errors import UsageError


def named_leaves(tree: Any) -> dict[str, Any]:
    """A tree's leaves, in order, by names such as params/Dense_0/kernel."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def tensor_names(tree: Any) -> list[str]:
    return list(named_leaves(tree))


def named_tensors(tree: Any) -> dict[str, np.ndarray]:
    return {name: np.asarray(leaf, order="C") for name, leaf in named_leaves(tree).items()}


def byte_size(tree: Any) -> int:
    """Of all leaves, or of leaves of these shapes and types."""
    return sum(leaf.dtype.itemsize * math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


DTYPES = {"F32": "float32", "I32": "int32", "U32": "uint32"}  # safetensors' names -> NumPy's


def tensor_type(dtype: Any, shape: Any) -> str:
    return f"{dtype} {tuple(shape)}"


def slice_type(tensor: Any) -> str:
    """Of a tensor in a safetensors file, before it is read."""
    return tensor_type(DTYPES.get(tensor.get_dtype(), tensor.get_dtype()), tensor.get_shape())


def check_tensors(problem: str, found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Both say the same of each tensor: its shape, for instance. The first that differs is named."""
    for name in sorted(expected.keys() | found.keys()):
        should_be, is_ = expected.get(name, "absent"), found.get(name, "absent")
        if should_be != is_:
            raise UsageError(f"{problem}: {name} should be {should_be}, is {is_}")
