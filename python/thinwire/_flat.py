"""All trained parameters of a model as one flat float32 vector, which is what the engine works on.

A float32 parameter in the host's memory becomes a part of it: nothing is copied at a step. Its storage ends where the parameter does, so
that whoever saves a part of the model writes that part. Its gradient is read where backward has put it, unless it lies there in a form
that the engine does not read. A parameter of another type, or on another device, keeps its own memory, and its gradient is copied (see
``_mirror.py``). So does one that other processes share, and a shard, whose storage FSDP holds: its values are copied at a step, its
gradient is read where it lies.
"""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import _torch_private as private
from ._hooks import leave_with
from ._listing import REMEDY_LATER, sharded_by
from ._mirror import Mirror, cut, dense
from ._sharded import Sharding, is_dtensor, local
from ._sharded import check as check_sharding
from ._thinwire import Vector, _all_finite

HUGE = 2 << 20  # bytes of a huge page
TYPES = (torch.float32, torch.bfloat16, torch.float16)


class Gradients(NamedTuple):
    """Where the gradient of each parameter lies."""

    addresses: list[int | None]
    held: list[Tensor | None]  # so that they stay there
    finite: bool  # seen to be; else it is not known


class Flat:
    machine = None  # no device: the vector is in the host's memory

    def __init__(self, params: Sequence[Tensor], names: Sequence[str | None] = (), sharding: Sharding | None = None) -> None:
        check(params, names, sharding)
        self.params = list(params)
        self.lengths = [local(param).numel() for param in params]
        apart = [param.dtype is not torch.float32 or param.device.type != "cpu" for param in params]
        # Copies from and to a device want pinned memory.
        pinned = any(param.device.type != "cpu" for param in params)
        self.values = _zeros(sum(self.lengths), pinned)
        self._views: list[tuple[Tensor, Tensor]] = []
        self._shards: list[tuple[Tensor, Tensor]] = []
        # Of each gradient: the tensor, its address and its version when it was seen to be finite.
        self._seen: list[tuple[weakref.ref[Tensor], int, int] | None] = [None] * len(self.params)
        # The host's copy of each gradient, for parameters that are apart.
        self._copies: list[Tensor | None] = [None] * len(self.params)
        self._mirror = None
        with torch.no_grad():
            for param, is_apart, view in zip(self.params, apart, cut(self.values, params), strict=True):
                view.copy_(local(param))
                if not is_apart and is_dtensor(param):
                    self._shards.append((param, view))
                elif not is_apart:
                    self._adopt(param, view)
                    self._views.append((param, view))
        start = self.values.data_ptr()
        self._memory = range(start, start + 4 * self.values.numel())
        self._addresses = [view.data_ptr() for _, view in self._views]
        self.vector = Vector(self.values)
        if any(apart):
            grads = _zeros(sum(self.lengths), pinned)
            self._copies = [part if is_apart else None for part, is_apart in zip(cut(grads, params), apart, strict=True)]
            self._mirror = Mirror(self.params, apart, self.values, grads)

    def look_at_gradients(self) -> None:
        """From now on gradients are looked at for infinities and NaN as backward makes them, while they are in the cache.

        A step then need not look again, as long as each is still the tensor that it was, and PyTorch has counted no write to it. For
        one process: collectives write to gradients without being counted.
        """
        hooks = [
            param.register_post_accumulate_grad_hook(_Look(self, index))  # type: ignore[no-untyped-call]
            for index, param in enumerate(self.params)
            if self._copies[index] is None and param.is_leaf and not is_dtensor(param)
        ]
        leave_with(self, hooks)

    def _adopt(self, param: Tensor, view: Tensor) -> None:
        """Makes `param` a part of the vector, where `view` is; unless other processes share it, who would lose sight of it.

        It gets a storage of its own on that memory, and keeps the memory alive. Views of one storage would do, but to ``torch.save``
        and safetensors each of them is the whole storage.
        """
        if param.is_shared() or not view.numel():  # type: ignore[no-untyped-call]
            return
        offset = view.data_ptr() - self.values.data_ptr()
        part = torch.frombuffer(self.values.numpy(), dtype=torch.float32, count=view.numel(), offset=offset)
        param.data = part.view(view.shape)

    def take_params(self) -> None:
        """Takes over what the program did to the parameters since the last step."""
        for (param, view), address in zip(self._views, self._addresses, strict=True):
            if param.data_ptr() != address and view.numel():  # it was given other memory: its values count
                if (by := sharded_by(param)) is not None:
                    raise RuntimeError(f"a parameter became a shard ({by}) after the optimizer was built. {REMEDY_LATER}")
                if param.dtype is not view.dtype or param.shape != view.shape or param.device != view.device:
                    raise RuntimeError(
                        "a parameter was given another type, shape or device after the optimizer was built; "
                        "build the optimizer after that (model.to(...) first)"
                    )
                view.copy_(param)
                self._adopt(param, view)
        for param, view in self._shards:
            if local(param).shape != view.shape:
                raise RuntimeError("a parameter was sharded otherwise after the optimizer was built; build the optimizer after that")
            view.copy_(local(param))
        if self._mirror is not None:
            self._mirror.take_params()

    def take_grads(self, scale: float = 1.0) -> Gradients:
        """The gradients, divided by `scale`; those of the program stay as they are."""
        if self._mirror is not None:
            self._mirror.take_grads()
        addresses: list[int | None] = []
        held: list[Tensor | None] = []
        finite = True
        for param, copy, seen in zip(self.params, self._copies, self._seen, strict=True):
            grad, address = param.grad, None
            if seen is not None and scale == 1.0 and seen[0]() is grad and grad is not None:
                address = seen[1] if seen[1] == grad.data_ptr() and seen[2] == private.version(grad) else None
            if address is None and not (grad is None and copy is None):
                grad, address = self._readable(param, copy, scale)
                finite = False
            addresses.append(address)
            held.append(grad)
        return Gradients(addresses, held, finite)

    def _readable(self, param: Tensor, copy: Tensor | None, scale: float) -> tuple[Tensor, int]:
        """A gradient as the engine can read it while it writes the parameters, and where: a copy, if need be."""
        if copy is not None:
            return (copy if scale == 1.0 else copy.div_(scale)), copy.data_ptr()
        param, grad = local(param), local(param.grad)
        assert grad is not None
        address = self._address(grad)
        if address == 0 or scale != 1.0:
            grad = torch.empty(param.shape, dtype=torch.float32).copy_(dense(grad))
            grad = grad if scale == 1.0 else grad.div_(scale)
            address = grad.data_ptr()
        if grad.numel() != param.numel():
            raise RuntimeError(f"a gradient of {grad.numel()} values for a parameter of {param.numel()}")
        return grad, address

    def _address(self, grad: Tensor) -> int:
        """Where a gradient lies that the engine can read as it is, while it writes the parameters; else 0."""
        plain = (
            type(grad) is Tensor
            and grad.layout is torch.strided
            and grad.dtype is torch.float32
            and grad.is_cpu
            and grad.is_contiguous()
            and not grad.is_neg()  # PyTorch may leave a minus for later
        )
        address: int = grad.data_ptr() if plain else 0
        # A gradient may be the parameter itself, say of half its square.
        return 0 if address % 4 or address in self._memory else address

    def step(self, worker: Any, grads: Gradients, lr: float, rates: list[float] | None) -> None:
        """One step of the engine."""
        worker._step_in_pieces(self.vector, self.lengths, grads.addresses, lr, rates, grads.finite)

    @contextmanager
    def lent(self, params: Tensor) -> Iterator[Tensor]:
        """Where the engine works on these parameters instead: a copy."""
        yield params.clone()

    def give_params(self) -> None:
        """Hands the vector's values to the parameters that have memory of their own."""
        if self._mirror is not None:
            self._mirror.give_params()
        for param, view in self._shards:
            local(param).copy_(view)
        for (param, view), address in zip(self._views, self._addresses, strict=True):
            if param.data_ptr() != address and view.numel():
                param.data.copy_(view)
        if self._views:  # autograd must know that they were written to
            torch.autograd.graph.increment_version([param for param, _ in self._views])


class _Look:
    """A hook that notes which version of a gradient was seen to be finite."""

    def __init__(self, flat: Flat, index: int) -> None:
        self._flat, self._index = weakref.ref(flat), index

    def __call__(self, param: Tensor) -> None:
        flat, grad = self._flat(), param.grad
        if flat is None or grad is None:
            return
        address = flat._address(grad)
        # Taken before the look: whoever writes during it makes the version another one.
        seen = (weakref.ref(grad), address, private.version(grad)) if address else None
        flat._seen[self._index] = seen if _all_finite(address, grad.numel()) else None


def check(params: Sequence[Tensor], names: Sequence[str | None] = (), sharding: Sharding | None = None) -> None:
    """Refuses parameters that cannot be a part of the vector, by their names where those are known."""
    seen: dict[int, int] = {}
    labels = [f"parameter {index}" for index in range(len(params))]
    labels[: len(names)] = [f"{label} ({name})" if name else label for label, name in zip(labels, names, strict=False)]
    for index, (param, label) in enumerate(zip(params, labels, strict=True)):
        check_sharding(param, label, sharding)
        if sharding is None and (by := sharded_by(param)) is not None:
            raise ValueError(f"{label} is a shard ({by}); accepted: whole parameters, or the shards of FSDP2 (fully_shard, docs/fsdp.md)")
        param = local(param)
        if param.dtype not in TYPES:
            raise ValueError(f"{label} is {param.dtype}; accepted: float32, bfloat16, float16")
        if param.is_meta:
            raise ValueError(f"{label} is on the meta device and has no values yet; give it some first (to_empty, then its init)")
        if param.layout is not torch.strided:
            raise ValueError(f"{label} is {param.layout}; accepted: dense tensors")
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
