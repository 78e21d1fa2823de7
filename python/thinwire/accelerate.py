"""Checkpoints of Accelerate that training can resume from.

    optimizer = accelerator.prepare_optimizer(thinwire.ZeroOneAdam(model.parameters(), ...))
    thinwire.accelerate.register(accelerator, optimizer)
    accelerator.save_state(folder)                      # all ranks, as always; then accelerator.load_state(folder)

``save_state`` keeps the optimizer state of rank 0. The hook has rank 0 hold the states of all ranks then, so that ``load_state`` goes on
bit for bit with the same number of ranks. The saved model is the consensus; training goes on from each rank's own parameters.

Accelerate reads models by ``safetensors.torch.load_model``, which refuses parameters that are views of one vector, as ours are. So a
second hook reads them.
"""

from __future__ import annotations

import os
from typing import Any

from ._frameworks import copied, unwrapped

__all__ = ["register"]


def register(accelerator: Any, optimizer: Any) -> Handles:
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

    def before_loading(models: list[Any], folder: str) -> None:
        files = [os.path.join(folder, f"model_{i}.safetensors" if i else "model.safetensors") for i in range(len(models))]
        if all(os.path.isfile(file) for file in files):  # otherwise they are PyTorch's, which Accelerate can read
            for model, file in zip(models, files, strict=True):
                _load(model, file)
            models.clear()

    return Handles(accelerator.register_save_state_pre_hook(before_saving), accelerator.register_load_state_pre_hook(before_loading))


class Handles:
    """Hooks that are removed together."""

    def __init__(self, *handles: Any) -> None:
        self._handles = handles

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()


def _load(model: Any, file: str) -> None:
    """A model from `file`, which has tied parameters once."""
    from safetensors.torch import load_file

    state = load_file(file)
    missing, unexpected = model.load_state_dict(state, strict=False)
    there = {(value.data_ptr(), value.shape) for name, value in model.state_dict().items() if name in state}
    missing = [name for name in missing if (model.state_dict()[name].data_ptr(), model.state_dict()[name].shape) not in there]
    if missing or unexpected:
        raise ValueError(f"{file}: expected the state of this model; missing {missing}, unexpected {list(unexpected)}")
