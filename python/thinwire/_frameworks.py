"""Frameworks that save rank 0's optimizer state alone, and what of ours makes their checkpoints whole."""

from __future__ import annotations

import sys
from typing import Any

_LIGHTNING = "give the Trainer a thinwire.lightning.ThinwireCallback() (callbacks=[...])"

# The module that saves and loads, and the remedy. Trainer works through Accelerate, so it is asked for first.
REMEDIES = {
    "transformers.trainer": "give the Trainer a thinwire.transformers.ThinwireCallback() (callbacks=[...])",
    "accelerate.checkpointing": "call thinwire.accelerate.register(accelerator, optimizer) before save_state",
    "lightning.pytorch.trainer.connectors.checkpoint_connector": _LIGHTNING,
    "pytorch_lightning.trainer.connectors.checkpoint_connector": _LIGHTNING,
}

ANYWHERE = (
    "call optimizer.consolidate_state_dict() on all ranks before rank 0 saves (thinwire.transformers, thinwire.lightning and "
    "thinwire.accelerate do it for you)"
)


def is_asked_by(module: str) -> bool:
    """Whether a function of `module` is among those that wait for the caller."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") != module:
        frame = frame.f_back
    return frame is not None


def asking() -> str | None:
    """The remedy for the framework that is saving or loading now; None if none is."""
    return next((remedy for module, remedy in REMEDIES.items() if module in sys.modules and is_asked_by(module)), None)
