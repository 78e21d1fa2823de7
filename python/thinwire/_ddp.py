"""DistributedDataParallel averages gradients itself. With these optimizers nobody else may."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.nn.modules.module import register_module_module_registration_hook
from torch.nn.parallel import DistributedDataParallel

from ._hooks import leave_with

log = logging.getLogger("thinwire")

ADVICE = (
    "these parameters are in a DistributedDataParallel, which averages gradients that this optimizer averages too: train the bare module "
    "(the one inside, and no DDP), keep every forward and backward() inside ddp.no_sync(), or give the wrapper PyTorch's noop_hook "
    "(torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks). DDP inside a host and this optimizer across hosts is another thing: "
    "give each a process group of its own"
)

_made: weakref.WeakSet[Any] = weakref.WeakSet()


def _note_wrapper(module: Any, name: str, inside: Any) -> None:
    if isinstance(module, DistributedDataParallel):
        _made.add(module)


# From now on every DDP is known as soon as it takes its module in; those of before are searched for.
register_module_module_registration_hook(_note_wrapper)


def _averages(wrapper: Any, when_asked: bool) -> bool:
    """Whether `wrapper` averages, if it is asked to. A communication hook of the program's own may do anything; PyTorch's no-op does
    nothing."""
    hooks = getattr(wrapper, "_comm_hooks", [])
    return when_asked and not (hooks and all(hook is noop_hook for hook, _ in hooks))


class _Watch:
    """What one wrapper does. Whether a backward averages was decided by its forward."""

    def __init__(self, averaged: bool) -> None:
        self.will_average = averaged  # the gradients of the last forward
        self.averaged = averaged  # some that have arrived since the last zero_grad()
        self._awaited = not averaged  # whether the backward of that forward is still to come

    def forward(self, wrapper: Any, _: Any) -> None:
        if torch.is_grad_enabled():
            self.will_average = _averages(wrapper, wrapper.require_backward_grad_sync)
            self._awaited = True

    def arrived(self, _: Tensor) -> None:
        self.averaged = self.averaged or self.will_average
        self._awaited = False

    def forget(self) -> None:
        """The gradients are gone. The next may be of the bare module, unless the wrapper's forward came before."""
        self.averaged = False
        self.will_average = self.will_average and self._awaited


class Wrappers:
    """The DDP modules around `params`, whenever they were made. A step is refused if one of them has averaged a gradient of it over ranks
    that are `across`, where the optimizer averages."""

    def __init__(self, params: Sequence[Tensor], across: Sequence[int] = ()) -> None:
        self._across = set(across)
        self._params = {id(param) for param in params}
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()
        self._watches: list[_Watch] = []
        self._hooks: list[Any] = []
        leave_with(self, self._hooks)
        # Asks the types alone: strange objects do strange things when asked.
        there = [found for found in gc.get_objects() if issubclass(type(found), DistributedDataParallel)]
        for wrapper in there:
            if self._watch(wrapper, False) and _averages(wrapper, wrapper.require_backward_grad_sync):
                log.warning("%s", ADVICE)

    def _watch(self, wrapper: Any, averaged: bool) -> bool:
        """Whether `wrapper` is one of ours."""
        self._seen.add(wrapper)
        ours = [param for param in wrapper.module.parameters() if id(param) in self._params]
        if ours and self._across and self._is_inside(wrapper):
            return False
        if ours:
            watch = _Watch(averaged)
            self._watches.append(watch)
            self._hooks.append(wrapper.register_forward_pre_hook(watch.forward))
            self._hooks.extend(param.register_post_accumulate_grad_hook(watch.arrived) for param in ours)
        return bool(ours)

    def _is_inside(self, wrapper: Any) -> bool:
        """Whether `wrapper` averages over other ranks than the optimizer does: inside a host, say, and the optimizer across hosts."""
        theirs = set(dist.get_process_group_ranks(wrapper.process_group))
        return theirs != self._across and len(theirs & self._across) == 1

    def check_step(self) -> None:
        """Raises if gradients were averaged already."""
        for wrapper in list(_made):
            if wrapper not in self._seen:
                # There was no watch yet: but it still knows what its last forward decided.
                self._watch(wrapper, _averages(wrapper, wrapper.require_forward_param_sync))
        if any(watch.averaged for watch in self._watches):
            raise RuntimeError(ADVICE)

    def forget(self) -> None:
        """The gradients are gone."""
        for watch in self._watches:
            watch.forget()
