"""All trained parameters of a model as one flat float32 vector, which is what the engine works on.

A float32 parameter in the host's memory becomes a view of it: nothing is copied at a step. A parameter of another type, or on another
device, keeps its own memory, and the vector holds its float32 master.

Gradients are copied into a flat vector of their own. After a step a float32 gradient is a view of that, with the same values: where
the program zeroes gradients in place (``zero_grad(set_to_none=False)``) they stay there, and the next step copies nothing.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence

import torch
from torch import Tensor

from ._thinwire import Vector

HUGE = 2 << 20  # bytes of a huge page
TYPES = (torch.float32, torch.bfloat16, torch.float16)


class Flat:
    def __init__(self, params: Sequence[Tensor]) -> None:
        _check(params)
        count = sum(param.numel() for param in params)
        # Copies from and to a device want pinned memory.
        pinned = torch.cuda.is_available() and any(param.is_cuda for param in params)
        self.params = list(params)
        self.values, self.grad = _zeros(count, pinned), _zeros(count, pinned)
        self.vector, self.grad_vector = Vector(self.values), Vector(self.grad)
        self._values = self._cut(self.values)
        self._grads = self._cut(self.grad)
        self._mirrored: list[tuple[Tensor, Tensor]] = []
        self._views: list[tuple[Tensor, Tensor, int]] = []
        with torch.no_grad():
            for param, view in zip(self.params, self._values, strict=True):
                view.copy_(param)
                if param.dtype is torch.float32 and param.device.type == "cpu":
                    param.data = view
                    self._views.append((param, view, view.data_ptr()))
                else:
                    self._mirrored.append((param, view))

    def _cut(self, vector: Tensor) -> list[Tensor]:
        """`vector` in the shapes of the parameters."""
        parts: list[Tensor] = []
        start = 0
        for param in self.params:
            parts.append(vector[start : start + param.numel()].view(param.shape))
            start += param.numel()
        return parts

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
        for param, view in self._mirrored:
            master = view.to(param.device, param.dtype)
            if not torch.equal(master, param):
                changed = (master != param).to("cpu")
                view.copy_(torch.where(changed, param.to("cpu", torch.float32), view))

    def take_grads(self, scale: float = 1.0) -> None:
        """The gradients, divided by `scale`, into one vector; zeros where a parameter has none."""
        filled, grads = [], []
        for param, view in zip(self.params, self._grads, strict=True):
            grad = param.grad
            if grad is None:
                view.zero_()
            elif grad is not view:
                filled.append(view)
                grads.append(grad.to_dense() if grad.is_sparse else grad)
                if grad.dtype is view.dtype and grad.device == view.device and grad.layout is view.layout:
                    param.grad = view
        if filled:
            torch._foreach_copy_(filled, grads)
        if scale != 1.0:
            self.grad /= scale

    def give_params(self) -> None:
        """Hands the vector's values to the parameters that have memory of their own."""
        for param, view in self._mirrored:
            param.copy_(view)
        for param, _, _ in self._views:  # autograd must know that they were written to
            torch.autograd.graph.increment_version(param)


def _check(params: Sequence[Tensor]) -> None:
    seen: dict[int, int] = {}
    for index, param in enumerate(params):
        if param.dtype not in TYPES:
            raise ValueError(f"parameter {index} is {param.dtype}; accepted: float32, bfloat16, float16")
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
