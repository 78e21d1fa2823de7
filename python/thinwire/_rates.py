"""The learning rates beside a checkpoint: the engine is told them at every step, and a scheduler's own state relies on them."""

from __future__ import annotations

import json
import logging
import os
from typing import Any

from torch import Tensor

log = logging.getLogger("thinwire")

KEYS = ("lr", "initial_lr")  # of a parameter group; a scheduler puts the second there
FILE = "learning-rates.json"


def save(dir: str | os.PathLike[str], step: int, rank: int, groups: list[dict[str, Any]]) -> None:
    rates = [{key: float(group[key]) for key in KEYS if key in group} for group in groups]
    # Every rank writes the same, for the folder may be each host's own; and by rename, for it may be one.
    mine = os.path.join(dir, f"{FILE}.{rank}")
    with open(mine, "w") as file:
        json.dump({"step": step, "groups": rates}, file)
    os.replace(mine, os.path.join(dir, FILE))


def take(dir: str | os.PathLike[str], step: int, groups: list[dict[str, Any]]) -> None:
    """Gives `groups` the rates that were saved with the checkpoint of `step`; without them they keep theirs."""
    try:
        with open(os.path.join(dir, FILE)) as file:
            saved = json.load(file)
    except FileNotFoundError:
        saved = {}
    rates = saved.get("groups", [])
    if saved.get("step") != step or len(rates) != len(groups):
        log.warning("the checkpoint in %s has no learning rates of its step %d: those given now are taken", dir, step)
        return
    for group, of_group in zip(groups, rates, strict=True):
        for key, rate in of_group.items():
            if isinstance(group.get(key), Tensor):
                group[key].fill_(rate)
            else:
                group[key] = rate
