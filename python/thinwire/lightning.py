"""Checkpoints of Lightning that hold the consensus, and that training can resume from.

    trainer = lightning.Trainer(..., callbacks=[thinwire.lightning.ThinwireCallback()])

Lightning asks the optimizer for the states of all ranks by itself (``consolidate_state_dict``) and keeps them in its file, so
``trainer.fit(..., ckpt_path=...)`` goes on bit for bit with the same number of ranks. The model in the file would be rank 0's own. With
the callback it is the consensus, also with ``save_weights_only=True``, and validation sees the consensus too; training goes on from each
rank's own parameters.

For the package ``lightning``, and for ``pytorch_lightning`` where the program has imported that one alone.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from ._frameworks import copied, unwrapped

if TYPE_CHECKING or "lightning.pytorch" in sys.modules or "pytorch_lightning" not in sys.modules:
    from lightning.pytorch import Callback, LightningModule, Trainer
else:
    from pytorch_lightning import Callback, LightningModule, Trainer

__all__ = ["ThinwireCallback"]

SAVING = "lightning_module_state_dict"  # what a strategy is asked for when a checkpoint is written, on all ranks


class ThinwireCallback(Callback):
    """Saves the consensus as the model of a ``Trainer``'s checkpoints, and has it validated."""

    def __init__(self) -> None:
        self._block = ExitStack()  # of consensus()

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        optimizers = [unwrapped(optimizer) for optimizer in trainer.optimizers]
        vars(trainer.strategy).pop(SAVING, None)  # of a fit before; it stays for trainer.save_checkpoint() after this one
        strategy, own = trainer.strategy, getattr(trainer.strategy, SAVING)

        def consensus() -> dict[str, Any]:
            with ExitStack() as block:
                for optimizer in optimizers:
                    block.enter_context(optimizer.consensus())
                state: dict[str, Any] = own()
                for optimizer in optimizers:
                    state = copied(state, optimizer)
            return state

        setattr(strategy, SAVING, consensus)
        for optimizer in optimizers:
            optimizer._models_are_consensus = True

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for optimizer in trainer.optimizers:
            self._block.enter_context(unwrapped(optimizer).consensus())

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._block.close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._block.close()
