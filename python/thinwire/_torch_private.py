"""What this package uses of PyTorch that PyTorch does not document, each with its reason. No other file names such a thing.

A new PyTorch may change any of them; then this is the file to look at. Beside these, `_compressed.py` answers to two names that
PyTorch's own code looks up: `_step_supports_amp_scaling`, which `GradScaler` asks, and `__getstate__`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

F = TypeVar("F", bound=Callable[..., Any])


def default_store() -> Any:
    """The store at which the program's ranks met. The public way to another one is a second address and port, which nobody gave us."""
    return dist.distributed_c10d._get_default_store()


def prefix_store(prefix: str, store: Any) -> Any:
    """A part of `store` with names of its own."""
    return dist.distributed_c10d.PrefixStore(prefix, store)


def gloo_group(store: Any, rank: int, size: int, timeout: Any) -> Any:
    """A gloo group made by hand. One of `new_group` would be kept, connections and all, until the program ends."""
    return dist.ProcessGroupGloo(store, rank, size, timeout=timeout)


def outside_compile(function: F) -> F:
    """`torch.compile` leaves `function` as it is. The public `torch.compiler.disable` imports the compiler, which takes seconds."""
    return cast(F, torch._disable_dynamo(function))  # type: ignore[attr-defined]


def copy_all(into: Sequence[Tensor], given: Sequence[Tensor]) -> None:
    """Copies many tensors in few launches; there is no public call for it."""
    torch._foreach_copy_(list(into), list(given))


def version(tensor: Tensor) -> int:
    """How often autograd saw `tensor` written to: tells whether a gradient changed since it was looked at."""
    return int(tensor._version)


def without_subclasses() -> AbstractContextManager[Any]:
    """Inside, a subclass of Tensor behaves as a plain one, for a piece of state that must not answer as a piece."""
    return torch._C.DisableTorchFunctionSubclass()


def as_plain(tensor: Tensor) -> Tensor:
    """The same memory as a plain Tensor."""
    return torch.Tensor._make_subclass(torch.Tensor, tensor)
