"""All trained parameters of a model as one flat float32 vector, which is what the engine works on.

A float32 parameter in the host's memory becomes a view of it: nothing is copied at a step. Its gradient is read where backward has put
it. A parameter of another type, or on another device, keeps its own memory, and its gradient is copied (see ``_mirror.py``).
"""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ._mirror import Mirror, cut, dense
from ._thinwire import Vector, _all_finite

HUGE = 2 << 20  # bytes of a huge page
TYPES = (torch.float32, torch.bfloat16, torch.float16)

SEEN = "_thinwire_seen"  # an attribute of gradients: where they were, and in which version, when they were seen to be finite


class Gradients(NamedTuple):
    """Where the gradient of each parameter lies; 0 for one that is not there."""

    addresses: list[int]
    held: list[Tensor | None]  # so that they stay there
    finite: bool  # seen to be; else it is not known


class Flat:
    def __init__(self, params: Sequence[Tensor]) -> None:
        _check(params)
        self.params = list(params)
        self.lengths = [param.numel() for param in params]
        apart = [param.dtype is not torch.float32 or param.device.type != "cpu" for param in params]
        # Copies from and to a device want pinned memory.
        pinned = any(param.device.type != "cpu" for param in params)
        self.values = _zeros(sum(self.lengths), pinned)
        self.vector = Vector(self.values)
        self._memory = range(self.values.data_ptr(), self.values.data_ptr() + 4 * self.values.numel())
        self._views: list[tuple[Tensor, Tensor, int]] = []
        # The host's copy of each gradient, for parameters that are apart.
        self._copies: list[Tensor | None] = [None] * len(self.params)
        self._mirror = None
        with torch.no_grad():
            for param, is_apart, view in zip(self.params, apart, cut(self.values, params), strict=True):
                view.copy_(param)
                if not is_apart:
                    param.data = view
                    self._views.append((param, view, view.data_ptr()))
        if any(apart):
            grads = _zeros(sum(self.lengths), pinned)
            self._copies = [part if is_apart else None for part, is_apart in zip(cut(grads, params), apart, strict=True)]
            self._mirror = Mirror(self.params, apart, self.values, grads)

    def look_at_gradients(self) -> None:
        """From now on gradients are looked at for infinities and NaN as backward makes them, while they are in the cache."""
        leaves = [param for param, _, _ in self._views if param.is_leaf]
        hooks = [param.register_post_accumulate_grad_hook(_look) for param in leaves]  # type: ignore[no-untyped-call]
        weakref.finalize(self, _remove, hooks)

    def take_params(self) -> None:
        """Takes over what the program did to the parameters since the last step."""
        for param, view, address in self._views:
            if param.data_ptr() != address:  # it was given other memory: its values count
                if param.dtype is not view.dtype or param.shape != view.shape or param.device != view.device:
                    raise RuntimeError(
                        "a parameter was given another type, shape or device after the optimizer was built; "
                        "build the optimizer after that (model.to(...) first)"
                    )
                view.copy_(param)
                param.data = view
        if self._mirror is not None:
            self._mirror.take_params()

    def take_grads(self, scale: float = 1.0) -> Gradients:
        """The gradients, after they were divided by `scale` as PyTorch's fused optimizers divide them, in place."""
        if self._mirror is not None:
            self._mirror.take_grads()
        held = [self._gradient(param) if copy is None else copy for param, copy in zip(self.params, self._copies, strict=True)]
        if scale != 1.0:
            torch._foreach_div_([grad for grad in held if grad is not None], scale)
        addresses = [0 if grad is None else grad.data_ptr() for grad in held]
        finite = all(grad is None or _was_seen(grad, address) for grad, address in zip(held, addresses, strict=True))
        return Gradients(addresses, held, finite)

    def _gradient(self, param: Tensor) -> Tensor | None:
        """Of a parameter in the host's memory, as the engine can read it while it writes the parameters."""
        grad = param.grad
        if grad is None:
            return None
        if not _is_plain(grad):
            grad = dense(grad).to(device="cpu", dtype=torch.float32).contiguous()
        if grad.data_ptr() in self._memory:  # the parameter itself, as half a square has it
            grad = grad.clone()
        if grad.numel() != param.numel():
            raise RuntimeError(f"a gradient of {grad.numel()} values for a parameter of {param.numel()}")
        return grad

    def give_params(self) -> None:
        """Hands the vector's values to the parameters that have memory of their own."""
        if self._mirror is not None:
            self._mirror.give_params()
        for param, _, _ in self._views:  # autograd must know that they were written to
            torch.autograd.graph.increment_version(param)


def _is_plain(grad: Tensor) -> bool:
    return grad.layout is torch.strided and grad.dtype is torch.float32 and grad.is_cpu and grad.is_contiguous()


def _look(param: Tensor) -> None:
    grad = param.grad
    if grad is not None and _is_plain(grad) and _all_finite(grad.data_ptr(), grad.numel()):
        setattr(grad, SEEN, (grad.data_ptr(), grad._version))


def _was_seen(grad: Tensor, address: int) -> bool:
    """Whether it was seen to be finite, and PyTorch has counted no write to it since. Writes by ``.data`` and NumPy are not counted."""
    return getattr(grad, SEEN, None) == (address, grad._version)


def _remove(hooks: list[Any]) -> None:
    for hook in hooks:
        hook.remove()


def _check(params: Sequence[Tensor]) -> None:
    seen: dict[int, int] = {}
    for index, param in enumerate(params):
        if param.dtype not in TYPES:
            raise ValueError(f"parameter {index} is {param.dtype}; accepted: float32, bfloat16, float16")
        if param.is_meta:
            raise ValueError(f"parameter {index} is on the meta device and has no values yet; give it some first (to_empty, then its init)")
        if param.layout is not torch.strided:
            raise ValueError(f"parameter {index} is {param.layout}; accepted: dense tensors")
        if hasattr(param, "device_mesh"):
            raise ValueError(f"parameter {index} is sharded over ranks (FSDP, DTensor); accepted: whole replicas on every rank")
        if param.numel() and seen.setdefault(param.data_ptr(), index) != index:
            first = seen[param.data_ptr()]
            raise ValueError(f"parameters {first} and {index} share memory; to tie weights, use one Parameter in both places")


def _zeros(count: int, pinned: bool) -> Tensor:
    """A vector on huge pages, where the system has them: a step is bound by memory."""
    if pinned or count < HUGE // 4:
        return torch.zeros(count, dtype=torch.float32, device="cpu", pin_memory=pinned)
    memory = mmap.mmap(-1, 4 * count + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    vector = torch.frombuffer(memory, dtype=torch.float32)
    # From a page's edge on, so that views are aligned as PyTorch's own tensors are.
    start = -vector.data_ptr() % HUGE // 4
    return vector[start : start + count]
