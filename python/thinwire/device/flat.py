"""All trained parameters of a model as one flat float32 vector on their device: what `_flat.py` is on the host.

Parameters keep memory of their own, of whatever type; the flat vector is their float32 master. Gradients are gathered into a second
vector. Both ways are copies within the device's memory. A parameter that became a part of the vector would spare them, but then
whoever saves it would write the whole vector.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from .. import _torch_private as private
from .._flat import Gradients, check
from .._mirror import cut, dense
from .._sharded import Sharding, local
from .machine import Machine


class DeviceFlat:
    """The trained `params`, all of which are on `device`."""

    vector = None  # the engine finds the parameters on the device

    def __init__(
        self, params: Sequence[Tensor], names: Sequence[str | None], sharding: Sharding | None, device: torch.device, name: str
    ) -> None:
        check(params, names, sharding)
        self.params = list(params)
        self.lengths = [local(param).numel() for param in params]
        self.machine = Machine(sum(self.lengths), device, name)
        self._are = [(local(param).shape, param.dtype, param.device) for param in params]
        with torch.no_grad():
            private.copy_all(self._parts(), [local(param) for param in self.params])

    @property
    def values(self) -> Tensor:
        """The parameters, on the device."""
        return self.machine.params

    def look_at_gradients(self) -> None:
        """A kernel looks for infinities and NaN at every step."""

    def take_params(self) -> None:
        """Takes over what the program did to the parameters; what it did not change keeps its float32 value."""
        for param, then in zip(self.params, self._are, strict=True):
            if (local(param).shape, param.dtype, param.device) != then:
                raise RuntimeError(
                    "a parameter was given another type, shape, sharding or device after the optimizer was built; "
                    "build the optimizer after that (model.to(...) first)"
                )
        pairs = list(zip(self._parts(), map(local, self.params), strict=True))
        same = [(part, param) for part, param in pairs if param.dtype is torch.float32]
        if same:
            private.copy_all([part for part, _ in same], [param for _, param in same])
        for part, param in pairs:
            if param.dtype is not torch.float32:  # no look at whether any did change: the host would wait for it
                part.copy_(torch.where(part.to(param.dtype) == param, part, param.to(part.dtype)))

    def take_grads(self, scale: float = 1.0) -> Gradients:
        """The gradients to the device's vector, divided by `scale`; zeros where a parameter has none."""
        there = cut(self.machine.gradient, self.params)
        grads = [local(param.grad) for param in self.params]
        for part, grad in zip(there, grads, strict=True):
            if grad is None:
                part.zero_()
            elif grad.numel() != part.numel():
                raise RuntimeError(f"a gradient of {grad.numel()} values for a parameter of {part.numel()}")
        pairs = [(part, dense(grad)) for part, grad in zip(there, grads, strict=True) if grad is not None]
        if pairs:
            private.copy_all([part for part, _ in pairs], [grad for _, grad in pairs])
        if scale != 1.0:
            # By a tensor: PyTorch multiplies with the reciprocal of a number, which rounds twice.
            self.machine.gradient.div_(torch.tensor(scale, dtype=torch.float32, device=self.machine.device))
        return Gradients([], [], False)

    def step(self, worker: Any, _: Gradients, lr: float, rates: list[float] | None) -> None:
        """One step of the engine."""
        worker._step_on_device(lr, rates)

    def give_params(self) -> None:
        """Hands the vector's values to the parameters."""
        private.copy_all([local(param) for param in self.params], self._parts())

    @contextmanager
    def lent(self, params: Tensor) -> Iterator[Tensor]:
        """Where the engine works on these parameters instead: the device's vector itself, which keeps its own if they are refused."""
        own = self.values.to("cpu", copy=True)  # a GPU may be full
        try:
            yield self.values.copy_(params)
        except BaseException:
            self.values.copy_(own)
            raise

    def _parts(self) -> list[Tensor]:
        return cut(self.values, self.params)
