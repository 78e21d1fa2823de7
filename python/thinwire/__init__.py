"""Adam over thin wires: 0/1 Adam, 1-bit Adam, Efficient-Adam, local Adam (DiLoCo) and Lion for PyTorch and NumPy.

With PyTorch, one line changes::

    optimizer = thinwire.ZeroOneAdam(model.parameters(), lr=1e-3)   # was torch.optim.AdamW(...)

It works on the ``torch.distributed`` process group of the program, on the bare model: no DDP around it.

Without PyTorch, a :class:`Worker` steps on flat float32 NumPy arrays::

    ends = thinwire.local_group(4)                       # one for each thread
    worker = thinwire.Worker("zero-one-adam", parameters=len(params), group=ends[i], sync_every=4)
    worker.step(params, grad, lr)                        # in place

Whether it will help on your network, :func:`plan` says before anything runs::

    thinwire.plan(params=110e6, workers=16, bandwidth="1Gb/s", compute="300ms")["recommendation"]["reason"]
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._plan import plan
from ._thinwire import Group, __version__, local_group
from ._worker import Worker

if TYPE_CHECKING:
    from .optim import AdamW, Birder, EfficientAdam, Lion, LocalAdam, OneBitAdam, OneBitLamb, ZeroOneAdam

__all__ = [
    "AdamW",
    "Birder",
    "EfficientAdam",
    "Group",
    "Lion",
    "LocalAdam",
    "OneBitAdam",
    "OneBitLamb",
    "Worker",
    "ZeroOneAdam",
    "__version__",
    "local_group",
    "plan",
]


_OPTIMIZERS = {
    "AdamW": "AdamW on the exact mean of the gradients, or on a coded one.",
    "Birder": "Birder: a coin for every parameter, right on average; one bit both ways.",
    "EfficientAdam": "Efficient-Adam: every rank's own Adam update, averaged in a few bits both ways.",
    "Lion": "Lion on the votes of the ranks: one bit both ways, and half of Adam's state.",
    "LocalAdam": "Local steps of AdamW, then an outer step on what they come to: DiLoCo, SlowMo, FedAvg, DSM.",
    "OneBitAdam": "1-bit Adam: exact rounds during the warm-up, then one bit a parameter a step.",
    "OneBitLamb": "1-bit LAMB: 1-bit Adam with a step size for every tensor, for large batches.",
    "ZeroOneAdam": "0/1 Adam: stale variance, local steps, and one bit a parameter when the ranks talk.",
}


def __getattr__(name: str) -> Any:
    """The optimizers are loaded when they are asked for: NumPy users need no PyTorch. So is what is for one framework alone."""
    if name in ("accelerate", "data", "lightning", "transformers"):
        return importlib.import_module(f".{name}", __name__)
    if name not in _OPTIMIZERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from . import optim
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from ._without_torch import stand_in

        return stand_in(name, _OPTIMIZERS[name])
    return getattr(optim, name)


def __dir__() -> list[str]:
    return sorted(__all__)
