"""The schedule of the learning rate: what the engine is told of it before the run.

The rate itself is given to every step. What the engine wants to know beforehand is its peak, how long it warms up, and how many steps
the run has; that is its table ``{"peak": …, "warmup": …, "decay": …, "steps": …}``. A schedule that is a function, ``step → rate``, is
sampled: the peak is its largest rate, the warm-up ends where it is reached, and the decay is the engine's shape that comes nearest. A
shape that the engine has no word for (one cycle, restarts, warm-up–stable–decay) changes no round of the run, because rounds go by the
rate of each step; only ``plan`` goes by the nearest shape.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from . import _thinwire

NEAR = 0.99  # of the peak
SLOW = 1.1  # the last hundredth of the way up counts, unless it takes more than a tenth of the time
LOOKS = 2000  # steps at which shapes are compared

Function = Callable[[int], float]
Table = dict[str, Any]


class Course(NamedTuple):
    """The rates of a run, one for each step from `first` on, and the engine's table that comes nearest."""

    rates: list[float]
    table: Table
    off: float  # the largest distance between the two after the warm-up, as a part of the peak
    first: int = 0

    def around(self, step: int) -> tuple[float, float, float] | None:
        """The rates before, at and after a step; None where they are not known."""
        at = step - self.first
        if not 0 <= at < len(self.rates):
            return None
        before = self.rates[at - 1] if at > 0 else (0.0 if step == 0 else self.rates[at])
        return before, self.rates[at], self.rates[min(at + 1, len(self.rates) - 1)]


def take(config: dict[str, Any], schedule: Any, steps: Any) -> tuple[dict[str, Any], Course | None]:
    """The engine's options with the schedule among them, and the rates where the schedule is a function."""
    if steps is not None:
        check_steps(steps)
    if schedule is None:
        return config, None
    if "learning_rate" in config:
        raise ValueError("learning_rate: the same as schedule; give one of the two")
    course = None
    if isinstance(schedule, dict):
        if steps is not None and schedule.get("steps", steps) != steps:
            raise ValueError(f"steps = {steps}: the schedule has {schedule['steps']}; give one of the two")
        table = schedule if steps is None else {**schedule, "steps": steps}
    else:
        course = sampled(schedule, steps)
        table = course.table
    return {**config, "learning_rate": table}, course


def sampled(schedule: Any, steps: int | None) -> Course:
    """The course of a function of the step."""
    if hasattr(schedule, "get_last_lr") or hasattr(schedule, "optimizer"):
        raise TypeError(
            f"schedule is a {type(schedule).__name__}, which needs the optimizer first: build the optimizer without schedule, then the "
            "scheduler, and call optimizer.follow(scheduler)"
        )
    if not callable(schedule):
        raise TypeError(
            f"schedule is a {type(schedule).__name__}; accepted: a dict such as "
            '{"peak": 1e-3, "warmup": 100, "decay": "cosine", "steps": 1000}, or a function of the step together with steps'
        )
    if steps is None:
        raise ValueError("steps: expected the number of steps of the run, because schedule is a function")
    return course_of([schedule(step) for step in range(steps)])


def course_of(rates: Sequence[Any], first: int = 0) -> Course:
    """The course through these rates."""
    if not rates:
        raise ValueError("invalid steps = 0: expected the number of steps of the run, at least 1")
    numbers = [_rate(rate, first + step) for step, rate in enumerate(rates)]
    peak = max(numbers)
    if peak == 0.0:
        raise ValueError("invalid schedule: all rates are 0; expected a rate above 0 at some step")
    warmup = _warmup(numbers, peak)
    looks = range(warmup, len(numbers), max(1, len(numbers) // LOOKS))  # before that no round is skipped
    found: tuple[float, Table] | None = None
    for shape in _shapes(numbers, peak, warmup):
        table = {"peak": peak, "warmup": warmup, "steps": len(numbers), **shape}
        there = _thinwire.rates(table, list(looks))
        off = max((abs(rate - numbers[step]) for rate, step in zip(there, looks, strict=True)), default=0.0) / peak
        if found is None or off < found[0]:
            found = off, table
    assert found is not None
    return Course(numbers, found[1], found[0], first)


def check_steps(steps: Any) -> None:
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ValueError(f"steps = {steps!r}: expected a whole number of at least 1")


def saved_in(folder: str | os.PathLike[str]) -> Table | None:
    """The table that a checkpoint was trained with, if there is one; what is wrong with the folder is for the engine to say."""
    try:
        with open(os.path.join(folder, "manifest.json")) as file:
            table = json.load(file)["config"].get("learning_rate")
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return None
    return table if isinstance(table, dict) else None


def _rate(rate: Any, step: int) -> float:
    number = float(rate)
    if not 0.0 <= number < math.inf:
        raise ValueError(f"invalid schedule: the rate of step {step} is {number}; expected a finite number of at least 0")
    return number


def _warmup(rates: Sequence[float], peak: float) -> int:
    """Steps until the peak is reached, as the engine counts them: the last of them is the first at the peak."""
    near = next(step for step, rate in enumerate(rates) if rate >= NEAR * peak)
    at = next(step for step, rate in enumerate(rates) if rate >= (1 - 1e-6) * peak)
    # A rate that creeps up to its peak has warmed up before it gets there.
    end = at if at <= SLOW * near + 1 else near
    return end + 1 if end else 0


def _shapes(rates: Sequence[float], peak: float, warmup: int) -> list[Table]:
    """The engine's shapes, with the numbers that would suit."""
    floor = rates[-1] / peak
    shapes: list[Table] = [{"decay": "constant"}, {"decay": "inverse-sqrt"}]
    shapes += [{"decay": decay, "floor": at} for decay in ("linear", "cosine") for at in (0.0, floor)]
    drop = next((step for step in range(warmup, len(rates)) if rates[step] < NEAR * peak), None)
    if drop is not None and drop > warmup and 0.0 < rates[drop] < peak:
        shapes.append({"decay": "step", "drop_every": drop - warmup, "drop_to": rates[drop] / peak})
    return shapes
