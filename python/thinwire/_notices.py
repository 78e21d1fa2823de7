"""What is said once about a run that goes otherwise than its user may think: jumps, and steps that save nothing.

All of it is the same on all ranks, so worker 0 says it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from . import _thinwire

log = logging.getLogger("thinwire")

PATIENCE = 200  # exact steps of an open warm-up before a word about it

ENOUGH = 100  # exact rounds that a variance needs, whatever the length of the run
ALL_EXACT = 250  # steps: a run that is not longer has nothing but exact rounds
SHORT = 400  # steps: up to here the exact rounds are a large part of the run

# Whoever gives one of these has chosen the exact rounds.
CHOSEN = (
    "preset",
    "warmup",
    "freeze_step",
    "variance_dense",
    "kappa",
    "variance_gap",
    "variance_longest",
    "freeze",
    "variance_steps",
    "var_freeze_step",
    "var_update_scaler",
)


class Notices:
    """What was said of one optimizer, whose vector has parameters of these `lengths`, `shapes` and `names`."""

    def __init__(self, lengths: Sequence[int], shapes: Sequence[Sequence[int]], names: Sequence[str | None]) -> None:
        self._ends, self._shapes, self._names = list(accumulate(lengths)), shapes, names
        self._told_of_jump = self._told_of_outlier = self._told_of_length = False
        self._steps: int | None = 0  # taken here, while that is of interest

    def start(self, worker: _thinwire.Worker, given: dict[str, Any]) -> None:
        """At the start of a run of `worker`, which was built from the words `given`."""
        config = worker.config
        if worker.rank != 0 or config.get("warmup") != "auto":
            self._steps = None
        steps = config.get("learning_rate", {}).get("steps", 0)
        mine = (
            "exact_codec" in config
            and "codec_up" in config
            and config.get("warmup") != "auto"
            and not any(word in given for word in CHOSEN)
        )
        if not mine or worker.rank != 0 or worker.steps > 0 or not 0 < steps <= SHORT or self._told_of_length:
            return
        self._told_of_length = True
        exact, part = _cost(worker, config, steps)
        if exact == steps <= ALL_EXACT:
            log.warning(
                "%s on a run of %d steps behaves like Adam: all its rounds are exact, because a variance needs about %d of them. The run "
                "is too short to gain anything by it but what a smaller exact_codec gives (%.0f %% of the bytes of Adam in float32)",
                config["name"],
                steps,
                ENOUGH,
                100 * part,
            )
        else:
            log.warning(
                "%s on a run of %d steps has %d exact rounds, because about %d are needed whatever the length. So it saves less here than "
                "in longer runs: it sends %.0f %% of the bytes of Adam in float32",
                config["name"],
                steps,
                exact,
                ENOUGH,
                100 * part,
            )

    def after_step(self, worker: _thinwire.Worker) -> None:
        if not self._told_of_jump and worker.rank == 0 and (jump := worker._first_jump) is not None:
            self._told_of_jump = True
            self._tell_jump(*jump)
        if not self._told_of_outlier and (outlier := worker._first_outlier) is not None:
            self._told_of_outlier = True
            _tell_outlier(worker, *outlier)
        if self._steps is not None:
            self._steps += 1
            if self._steps == PATIENCE:
                self._steps = None
                if worker.traffic()["rounds"]["coarse"] == 0:
                    _tell_open_warmup(worker)

    def _tell_jump(self, step: int, place: int) -> None:
        log.warning(
            "step %d moved %s by more than 100 learning rates; Adam's steps are seldom longer than one. Look for a learning rate that "
            "fell or rose abruptly, for gradients that did, and for betas very near to 1. traffic()['jumps'] counts such steps",
            step,
            self._name_of(place),
        )

    def _name_of(self, place: int) -> str:
        number = next(number for number, end in enumerate(self._ends) if place < end)
        name = self._names[number] if number < len(self._names) else None
        label = f"parameter {number}" if name is None else name
        return f"{label} (of shape {list(self._shapes[number])})"


def _cost(worker: _thinwire.Worker, config: dict[str, Any], steps: int) -> tuple[int, float]:
    """Exact rounds of a run, and its bytes as a part of those of Adam; one worker alone is planned as if it had company."""
    hosts = worker.hosts if worker.size > 1 else [0, 1]
    adam = {word: config[word] for word in ("topology", "hierarchy", "host_codec", "bucket")}
    plan, plain = (_thinwire.plan(words, worker.parameters, hosts, 0, steps) for words in (config, {**adam, "name": "adam"}))
    return plan["rounds"]["exact"], plan["bytes_sent"] / plain["bytes_sent"]


def _tell_outlier(worker: _thinwire.Worker, step: int, norm: float, limit: float) -> None:
    log.warning(
        "step %d: the gradient of worker %d is an outlier and is %s: its norm is %g, expected at most %g, which is %g times the median of "
        "those before it. traffic()['outliers'] counts such steps",
        step,
        worker.rank,
        "clipped" if worker.config["outlier"] == "clip" else "left out of the mean",
        norm,
        limit,
        worker.config["outlier_factor"],
    )


def _tell_open_warmup(worker: _thinwire.Worker) -> None:
    config = worker.config
    earliest = max(round(1 / (1 - config["betas"][1])), config.get("learning_rate", {}).get("warmup", 0))
    if worker.steps <= earliest:
        why = f"cannot end before step {earliest}: it compares the variance with that of 1/(1 - beta2) steps ago"
    else:
        why = "has not found the variance settled yet"
    log.warning(
        'step %d: no step of 1-bit Adam has been compressed so far. Its warm-up is "auto", which %s. Set warmup=... to a number of exact '
        'steps, or tell the length of the run (schedule={..., "steps": ...}), of which 15 %% are the warm-up, but at least 100 steps',
        worker.steps,
        why,
    )
