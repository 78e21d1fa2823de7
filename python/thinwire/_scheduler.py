"""A scheduler of PyTorch, read before the run: a copy of it is stepped to the end, on an optimizer that stands in for ours."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from ._schedule import Course, check_steps, course_of

REMEDY = 'describe it by schedule= where the optimizer is built: a table such as {"peak": 1e-3, "warmup": 100}, or a function of the step'


def read(scheduler: Any, optimizer: Optimizer, steps: int | None) -> Course:
    """The rates that `scheduler` will set from its present step to step `steps`; neither it nor `optimizer` is touched.

    Rates are those of the first parameter group, by which rounds go.
    """
    if isinstance(scheduler, ReduceLROnPlateau):
        raise TypeError(f"scheduler: ReduceLROnPlateau goes by the loss, which nobody knows beforehand; {REMEDY}")
    if getattr(scheduler, "optimizer", None) is not optimizer or not hasattr(scheduler, "step"):
        raise TypeError(f"scheduler is a {type(scheduler).__name__}; expected a scheduler of torch.optim.lr_scheduler on this optimizer")
    steps = steps if steps is not None else getattr(scheduler, "total_steps", None)
    if steps is None:
        raise ValueError("steps: expected the number of steps of the run: follow(scheduler, steps=...)")
    check_steps(steps)
    inside = getattr(scheduler, "_schedulers", [scheduler])  # a ChainedScheduler counts nothing itself
    first = max(int(getattr(scheduler, "last_epoch", getattr(inside[0], "last_epoch", 0))), 0)
    if first >= steps:
        raise ValueError(f"steps = {steps}: the scheduler is at step {first} already")
    stand_in = _StandIn(optimizer)
    try:
        twin = copy.deepcopy(scheduler, {id(optimizer): stand_in})
    except Exception as error:
        raise TypeError(f"scheduler: this {type(scheduler).__name__} cannot be copied ({error}); {REMEDY}") from error
    rates = [float(stand_in.param_groups[0]["lr"])]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that no optimizer steps in between
        for step in range(first + 1, steps):
            try:
                twin.step()
            except Exception as error:
                raise ValueError(f"steps = {steps}: the scheduler ends at step {step} ({error})") from error
            rates.append(float(stand_in.param_groups[0]["lr"]))
    return course_of(rates, first)


class _StandIn(Optimizer):
    """Parameter groups with all that ours have, but for the parameters."""

    def __init__(self, optimizer: Optimizer) -> None:
        groups = [
            {key: copy.deepcopy(value) for key, value in group.items() if key not in ("params", "param_names")}
            for group in optimizer.param_groups
        ]
        super().__init__([{**group, "params": [torch.zeros(1)]} for group in groups], {})
