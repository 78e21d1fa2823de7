"""Frameworks that save rank 0's optimizer state alone, and what of ours makes their checkpoints whole.

Nobody tells an optimizer who asks for its state, and we do not look at the callers. A state knows whether it is whole and notices when it
is pickled (``_states.State``); what is in use in this process says whose hook belongs into the message.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from ._compressed import _Compressed

_TRAINER = "with Trainer, give it a thinwire.transformers.ThinwireCallback() (callbacks=[...])"
_ACCELERATE = "with Accelerate, call thinwire.accelerate.register(accelerator, optimizer) before save_state"
_LIGHTNING = "with Lightning, give the Trainer a thinwire.lightning.ThinwireCallback() (callbacks=[...])"

ANYWHERE = "call optimizer.consolidate_state_dict() on all ranks before rank 0 saves"


def saving_rank_0() -> list[str]:
    """The remedies for the frameworks in use that save what rank 0 gives them. Trainer works through Accelerate."""
    accelerate = sys.modules.get("accelerate.state")
    if accelerate is None or not accelerate.is_initialized():
        return []
    return [*([_TRAINER] if "transformers.trainer" in sys.modules else []), _ACCELERATE]


def consolidating() -> list[str]:
    """The remedy for the framework in use that consolidates by itself, and saves the model of rank 0."""
    names = ("lightning.pytorch.trainer", "pytorch_lightning.trainer")
    return [_LIGHTNING] if any(name in sys.modules for name in names) else []


def remedies() -> str:
    """How one file gets the states of all ranks: the way that works anywhere, and the hooks for the frameworks in use."""
    return "; ".join([ANYWHERE, *saving_rank_0(), *consolidating()])


def unwrapped(optimizer: Any) -> _Compressed:
    """The optimizer of ours inside what a framework has put around it."""
    from ._compressed import _Compressed

    inside = optimizer
    while not isinstance(inside, _Compressed):
        inside = getattr(inside, "optimizer", None) or getattr(inside, "_optimizer", None)
        if inside is None:
            raise TypeError(f"optimizer: expected one of thinwire, found {type(optimizer).__name__}")
    return inside


def copied(state: dict[str, Any], optimizer: _Compressed) -> dict[str, Any]:
    """A model's state with what :meth:`consensus` changes copied, so that it stays as it is now; what is tied stays tied."""
    buffers = [] if optimizer._buffers is None else optimizer._buffers.tensors()
    ours = {tensor.data_ptr() for tensor in (*optimizer._flat.params, *buffers)}
    copies: dict[tuple[Any, ...], Any] = {}
    copy = dict(state)
    for name, value in state.items():
        if isinstance(value, Tensor) and value.data_ptr() in ours:
            key = (value.data_ptr(), value.shape)
            if key not in copies:
                copies[key] = value.detach().clone()
            copy[name] = copies[key]
    return copy
