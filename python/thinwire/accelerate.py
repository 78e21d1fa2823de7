"""Checkpoints of Accelerate that training can resume from.

    optimizer = accelerator.prepare_optimizer(thinwire.ZeroOneAdam(model.parameters(), ...))
    thinwire.accelerate.register(accelerator, optimizer)
    accelerator.save_state(folder)                      # all ranks, as always; then accelerator.load_state(folder)

``save_state`` keeps the optimizer state of rank 0. The hook has rank 0 hold the states of all ranks then, so that ``load_state`` goes on
bit for bit with the same number of ranks. The saved model is the consensus; training goes on from each rank's own parameters.
"""

from __future__ import annotations

from typing import Any

from ._frameworks import copied, unwrapped

__all__ = ["register"]


def register(accelerator: Any, optimizer: Any) -> Any:
    """Has ``accelerator.save_state`` save the states of all ranks, and the consensus as the model.

    Parameters
    ----------
    accelerator : Accelerator
        The one whose ``save_state`` is called, on all ranks.
    optimizer : Optimizer
        One of thinwire, prepared by `accelerator` or not yet. With several, register each.

    Returns
    -------
    handle
        Its ``remove()`` undoes this.
    """
    ours = unwrapped(optimizer)

    def before_saving(models: list[Any], weights: list[dict[str, Any]], folder: str) -> None:
        with ours.consensus():
            ours.consolidate_state_dict()
            weights[:] = [copied(state, ours) for state in weights]

    return accelerator.register_save_state_pre_hook(before_saving)
