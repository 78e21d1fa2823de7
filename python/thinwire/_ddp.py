"""DistributedDataParallel averages gradients itself. With these optimizers nobody else may."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

ADVICE = (
    "these parameters are in a DistributedDataParallel, which averages gradients that this optimizer averages too: use the bare module "
    "(ddp.module, or no DDP at all), or keep backward() and step() inside ddp.no_sync()"
)


class Wrappers:
    """The DDP modules around `params`. One made after the optimizer is found at the first step."""

    def __init__(self, params: Sequence[Tensor]) -> None:
        self._params = {id(param) for param in params}
        self._found: list[weakref.ref[Any]] = []
        self._search()
        self.check()
        self._stepped = False

    def _search(self) -> None:
        self._found.clear()
        for candidate in gc.get_objects():
            # Asks the type alone: strange objects do strange things when asked.
            if issubclass(type(candidate), DistributedDataParallel):
                if any(id(param) in self._params for param in candidate.module.parameters()):
                    self._found.append(weakref.ref(candidate))

    def check_step(self) -> None:
        """As `check`, after another search at the first step."""
        if not self._stepped:
            self._stepped = True
            self._search()
        self.check()

    def check(self) -> None:
        """Raises if a wrapper would average at backward."""
        for reference in self._found:
            wrapper = reference()
            if wrapper is not None and wrapper.require_backward_grad_sync:
                raise RuntimeError(ADVICE)
