"""DistributedDataParallel averages gradients itself. With these optimizers nobody else may."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

ADVICE = (
    "these parameters are in a DistributedDataParallel, which averages gradients that this optimizer averages too: use the bare module "
    "(ddp.module, or no DDP at all), or keep forward and backward() inside ddp.no_sync()"
)


class Wrappers:
    """The DDP modules around `params`. One made after the optimizer is found at the first step.

    Whether a backward averages was decided by its forward. What the last forward with gradients decided is written down by a hook; of
    those before the hook was there, the wrapper itself still knows.
    """

    def __init__(self, params: Sequence[Tensor]) -> None:
        self._params = {id(param) for param in params}
        self._averaged: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
        for wrapper in self._search():
            self._watch(wrapper, wrapper.require_backward_grad_sync)
        self.check()
        self._stepped = False

    def _search(self) -> list[Any]:
        """Asks the types alone: strange objects do strange things when asked."""
        wrappers = [found for found in gc.get_objects() if issubclass(type(found), DistributedDataParallel)]
        return [wrapper for wrapper in wrappers if any(id(param) in self._params for param in wrapper.module.parameters())]

    def _watch(self, wrapper: Any, averaged: bool) -> None:
        self._averaged[wrapper] = averaged
        there = weakref.ref(self._averaged)

        def note(wrapper: Any, _: Any) -> None:
            averaged = there()
            if averaged is not None and torch.is_grad_enabled():
                averaged[wrapper] = wrapper.require_backward_grad_sync

        wrapper.register_forward_pre_hook(note)

    def check_step(self) -> None:
        """As `check`, after another search at the first step."""
        if not self._stepped:
            self._stepped = True
            for wrapper in self._search():
                if wrapper not in self._averaged:
                    self._watch(wrapper, wrapper.require_forward_param_sync)
        self.check()

    def check(self) -> None:
        """Raises if a wrapper averages too."""
        if any(self._averaged.values()):
            raise RuntimeError(ADVICE)
