"""The keywords of the optimizers and of the worker, for editors and type checkers.

The engine checks them when a program runs, and its list is the one that counts; ``tests/test_options.py`` holds this one to it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    from torch import Tensor, nn

Name = Literal["adam", "one-bit-adam", "zero-one-adam", "efficient-adam"]
Exact = Literal["f32", "bf16"]


class _Peak(TypedDict):
    peak: float


class Schedule(_Peak, total=False):
    """A learning rate: a linear warm-up to `peak`, then a decay until step `steps`."""

    warmup: int
    decay: Literal["constant", "linear", "cosine", "step", "inverse-sqrt"]
    steps: int
    floor: float
    drop_every: int
    drop_to: float


AnySchedule = Schedule | dict[str, Any] | Callable[[int], float] | None


class Engine(TypedDict, total=False):
    """Options of the engine that every optimizer has."""

    preset: Literal["paper", "deepspeed"]
    bias_correction: bool
    clip: float
    block: int
    topology: Literal["sharded", "central"]
    hierarchy: Literal["auto", "flat", "hosts"]
    host_codec: Exact
    non_finite: Literal["error", "skip"]
    outlier: Literal["clip", "skip", "off"]
    outlier_factor: float
    threads: int
    bucket: int
    learning_rate: Schedule | dict[str, Any]


class _Exact(TypedDict, total=False):
    exact_codec: Exact


class _Coarse(TypedDict, total=False):
    codec: str
    codec_up: str
    codec_down: str
    residual: Exact
    residue: Exact  # the old name of residual


class _OneBit(TypedDict, total=False):
    warmup: int | Literal["auto"]
    freeze_step: int


class _ZeroOne(TypedDict, total=False):
    variance_dense: int
    kappa: int
    variance_gap: int
    variance_longest: int
    freeze: int | Literal["never"]
    variance_steps: list[int]
    sync: Literal["follow-lr", "doubling", "every", "custom"]
    sync_start: int
    sync_every: int | None
    sync_longest: int
    sync_steps: list[int]
    var_freeze_step: int
    var_update_scaler: int
    local_step_scaler: int
    local_step_clipper: int


class _Efficient(TypedDict, total=False):
    theta: Literal["constant", "one-minus-over-t"]


class Torch(TypedDict, total=False):
    """Keywords of ``torch.optim.AdamW`` that change no result here."""

    foreach: bool | None
    fused: bool | None
    amsgrad: Literal[False]
    capturable: Literal[False]
    differentiable: Literal[False]
    maximize: Literal[False]


class Ours(TypedDict, total=False):
    """Keywords of the optimizers that the engine does not see."""

    process_group: Any
    init: Literal["check", "broadcast"]
    deadline: float
    resume: str | os.PathLike[str] | None
    schedule: AnySchedule
    steps: int | None
    buffers: nn.Module | Iterable[Tensor] | None
    buffer_sync: Literal["mean", "rank0"]
    device: Literal["auto", "host", "gpu", "interpret"]


class AdamWOptions(Engine, _Exact, Torch, Ours, total=False):
    pass


class OneBitAdamOptions(Engine, _Exact, _Coarse, _OneBit, Torch, Ours, total=False):
    pass


class ZeroOneAdamOptions(Engine, _Exact, _Coarse, _ZeroOne, Torch, Ours, total=False):
    pass


class EfficientAdamOptions(Engine, _Coarse, _Efficient, Torch, Ours, total=False):
    pass


class WorkerOptions(Engine, _Exact, _Coarse, _OneBit, _ZeroOne, _Efficient, total=False):
    betas: tuple[float, float] | list[float]
    eps: float
    weight_decay: float
    groups: list[dict[str, Any]]
    schedule: AnySchedule
    steps: int | None
