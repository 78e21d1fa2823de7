"""All trained parameters of a model as one flat float32 vector, which is what the engine works on.

A float32 parameter in the host's memory becomes a view of it: nothing is copied at a step. Its gradient becomes a view of a second
vector, as soon as backward has made it: it is copied while it is in the cache, and backward's own memory is free again. A parameter of
another type, or on another device, keeps its own memory (see ``_mirror.py``).
"""

from __future__ import annotations

import mmap
import sys
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ._mirror import Mirror, cut, dense
from ._thinwire import Vector

HUGE = 2 << 20  # bytes of a huge page
TYPES = (torch.float32, torch.bfloat16, torch.float16)


class Flat:
    def __init__(self, params: Sequence[Tensor]) -> None:
        _check(params)
        self.params = list(params)
        apart = [param.dtype is not torch.float32 or param.device.type != "cpu" for param in params]
        count = sum(param.numel() for param in params)
        # Copies from and to a device want pinned memory.
        pinned = any(param.device.type != "cpu" for param in params)
        self.values, self.grad = _zeros(count, pinned), _zeros(count, pinned)
        self.vector, self.grad_vector = Vector(self.values), Vector(self.grad)
        self._views: list[tuple[Tensor, Tensor, int, Tensor]] = []
        parts = zip(self.params, apart, cut(self.values, params), cut(self.grad, params), strict=True)
        with torch.no_grad():
            for param, is_apart, view, grad in parts:
                view.copy_(param)
                if not is_apart:
                    param.data = view
                    self._views.append((param, view, view.data_ptr(), grad))
                    _adopt_gradient(param, grad)
        self._mirror = Mirror(self.params, apart, self.values, self.grad) if any(apart) else None

    def take_params(self) -> None:
        """Takes over what the program did to the parameters since the last step."""
        for param, view, address, _ in self._views:
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

    def take_grads(self, scale: float = 1.0) -> None:
        """The gradients, divided by `scale`, into one vector; zeros where a parameter has none."""
        for param, _, _, view in self._views:
            grad = param.grad
            if grad is None:
                view.zero_()
            elif grad is not view:  # the program has put it there, or keeps the last one
                view.copy_(dense(grad))
        if self._mirror is not None:
            self._mirror.take_grads()
        if scale != 1.0:
            self.grad /= scale

    def give_params(self) -> None:
        """Hands the vector's values to the parameters that have memory of their own."""
        if self._mirror is not None:
            self._mirror.give_params()
        for param, _, _, _ in self._views:  # autograd must know that they were written to
            torch.autograd.graph.increment_version(param)


def _references(there: weakref.ref[Any]) -> int:
    return sys.getrefcount(there())


class _Thing:
    pass


_held = (_Thing(),)
OURS = _references(weakref.ref(_held[0]))  # what the question counts of a thing that one tuple holds, and nobody else


def _adopt_gradient(param: Tensor, view: Tensor) -> None:
    """From now on a gradient that backward makes for `param` moves to `view` at once, unless the program still holds the last one."""
    there = weakref.ref(view)

    def adopt(param: Tensor) -> None:
        free = _references(there) <= OURS
        view, grad = there(), param.grad
        if view is None or grad is None or grad is view or grad.requires_grad or grad.layout is not view.layout:
            return
        if free:
            view.copy_(grad)
            param.grad = view

    if param.is_leaf and param.requires_grad:
        param.register_post_accumulate_grad_hook(adopt)  # type: ignore[no-untyped-call]


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
