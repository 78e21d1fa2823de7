"""Checkpoints of Hugging Face's ``Trainer`` that training can resume from.

    trainer = Trainer(..., callbacks=[thinwire.transformers.ThinwireCallback()])

``Trainer`` saves the optimizer state of rank 0. Residuals, and between two syncs of 0/1 Adam parameters, are each rank's own. The callback
has rank 0 hold the states of all ranks when a checkpoint is due, so that ``optimizer.pt`` has them all, and
``trainer.train(resume_from_checkpoint=...)`` goes on bit for bit with the same number of ranks, with the callback or without.

The saved and the evaluated model are the consensus: the callback enters ``optimizer.consensus()`` at the end of a step after which
``Trainer`` evaluates or saves, and leaves it before the next step. It must come after callbacks that ask for a save of their own.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ._compressed import _Compressed
from ._frameworks import unwrapped

__all__ = ["ThinwireCallback"]


class ThinwireCallback(TrainerCallback):
    """Saves the states of all ranks in the checkpoints of a ``Trainer``, and the consensus as their model."""

    _optimizer: _Compressed

    def __init__(self) -> None:
        self._block = ExitStack()  # of consensus()

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any) -> None:
        self._leave()
        self._optimizer = unwrapped(more["optimizer"])
        if args.eval_on_start:
            self._block.enter_context(self._optimizer.consensus())

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any) -> None:
        self._enter(args, control)

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any) -> None:
        self._leave()
        self._enter(args, control)

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any) -> None:
        if not _may_save(args, control):
            self._leave()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any) -> None:
        self._leave()

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any) -> None:
        self._leave()

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any) -> None:
        self._leave()

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **more: Any) -> None:
        if args.load_best_model_at_end and state.best_model_checkpoint is not None:
            self._optimizer._keep_what_was_loaded()
        self._leave()

    def _enter(self, args: TrainingArguments, control: TrainerControl) -> None:
        if not control.should_save and not control.should_evaluate:
            return
        self._block.enter_context(self._optimizer.consensus())
        if _may_save(args, control) and not args.save_only_model:
            self._optimizer.consolidate_state_dict()

    def _leave(self) -> None:
        self._block.close()


def _may_save(args: TrainingArguments, control: TrainerControl) -> bool:
    """Whether a save may follow: with the strategy "best", the evaluation decides it."""
    return bool(control.should_save) or args.save_strategy == "best"
