"""The words that an optimizer is given: what of them is PyTorch's, what the engine's, and what is refused before anything is sent."""

from __future__ import annotations

import math
import numbers
import os
from typing import Any

from torch import Tensor

from . import _thinwire

OURS = (
    "lr",
    "process_group",
    "init",
    "deadline",
    "resume",
    "schedule",
    "steps",
    "buffers",
    "buffer_sync",
    "device",
)  # which the engine does not know

ELSEWHERE = ("name", "groups")  # the engine's, which PyTorch says otherwise

SPEED = {"foreach", "fused"}  # words of torch.optim.AdamW for how it is computed, which is ours to decide

THEIRS = {"amsgrad", "capturable", "differentiable", "maximize"}  # and for what is; we have their defaults alone


def check_folder(resume: Any) -> None:
    if resume is None:
        return
    if not isinstance(resume, (str, os.PathLike)):
        raise TypeError(f"resume = {resume!r}: accepted: the path of a folder")
    if not os.path.isdir(resume):
        raise FileNotFoundError(f"resume = {os.fspath(resume)!r}: there is no such folder")


def without_theirs(config: dict[str, Any]) -> dict[str, Any]:
    """Without words of ``torch.optim.AdamW`` that ask for nothing we do not do."""
    for word in config.keys() & THEIRS:
        if config[word]:
            raise ValueError(f"{word} = {config[word]!r}: torch.optim.AdamW has it, this optimizer does not; leave it out")
    return {word: value for word, value in config.items() if word not in SPEED | THEIRS}


def check_group(group: dict[str, Any]) -> None:
    """What the engine would refuse in words of its own, or would not see."""
    if not _is_rate(group["lr"]):
        raise ValueError(f"lr = {group['lr']!r}: accepted: a number of at least 0")
    if not isinstance(group["betas"], (tuple, list)) or len(group["betas"]) != 2:
        raise ValueError(f"betas = {group['betas']!r}: accepted: two numbers, from 0 to less than 1")
    for word in ("eps", "weight_decay"):
        if isinstance(group[word], bool) or not isinstance(group[word], (int, float)):
            raise ValueError(f"{word} = {group[word]!r}: accepted: a number of at least 0")
    for word in without_theirs(group).keys() - {"params", "lr", "betas", "eps", "weight_decay", *ELSEWHERE}:
        if word in OURS or _is_engines(word):  # others are the program's own, such as a group's name
            raise ValueError(f"{word}: a param group has lr and weight_decay of its own; {word} is the whole optimizer's, give it there")


def _is_rate(lr: Any) -> bool:
    return isinstance(lr, (int, float, Tensor, numbers.Real)) and not isinstance(lr, bool) and 0 <= float(lr) < math.inf


def _is_engines(word: str) -> bool:
    try:
        _thinwire.resolve({"name": "adam", word: None})
    except ValueError as error:
        return "unknown field" not in str(error)
    return True
