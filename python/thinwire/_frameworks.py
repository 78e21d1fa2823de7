"""Frameworks that save rank 0's optimizer state alone, and what of ours makes their checkpoints whole."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from ._compressed import _Compressed

_LIGHTNING = "give the Trainer a thinwire.lightning.ThinwireCallback() (callbacks=[...])"

# The module that saves and loads, its function that saves, and the remedy. Trainer works through Accelerate, so it comes first.
REMEDIES = [
    ("transformers.trainer", "_save_checkpoint", "give the Trainer a thinwire.transformers.ThinwireCallback() (callbacks=[...])"),
    ("accelerate.checkpointing", "save_accelerator_state", "call thinwire.accelerate.register(accelerator, optimizer) before save_state"),
    ("lightning.pytorch.trainer.connectors.checkpoint_connector", "dump_checkpoint", _LIGHTNING),
    ("pytorch_lightning.trainer.connectors.checkpoint_connector", "dump_checkpoint", _LIGHTNING),
]

ANYWHERE = (
    "call optimizer.consolidate_state_dict() on all ranks before rank 0 saves (thinwire.transformers, thinwire.lightning and "
    "thinwire.accelerate do it for you)"
)


def is_asked_by(module: str, function: str | None = None) -> bool:
    """Whether a function of `module` is among those that wait for the caller; if `function` is given, that one."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == module and function in (None, frame.f_code.co_name):
            return True
        frame = frame.f_back
    return False


def saving() -> str | None:
    """The remedy for the framework that writes a checkpoint now; None if none does."""
    return next((remedy for module, function, remedy in REMEDIES if module in sys.modules and is_asked_by(module, function)), None)


def loading() -> str | None:
    """The remedy for the framework that reads a checkpoint now."""
    return next((remedy for module, _, remedy in REMEDIES if module in sys.modules and is_asked_by(module)), None)


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
