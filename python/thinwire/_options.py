"""The keywords of the optimizers and of the worker, for editors and type checkers.

The engine checks them when a program runs, and its list is the one that counts; ``tests/test_options.py`` holds this one to it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    from torch import Tensor, nn

Name = Literal["adam", "one-bit-adam", "zero-one-adam", "efficient-adam", "local-adam", "lion", "birder", "one-bit-lamb"]
Cast = Literal["f32", "bf16"]
Exact = Literal["f32", "bf16", "power6", "power5"]
Residual = Literal["f32", "bf16", "i8"]


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

    preset: Literal[
        "paper",
        "deepspeed",
        "lean",
        "loco",
        "fedavg",
        "slowmo",
        "diloco",
        "dsm",
        "co2",
        "streaming-diloco",
        "sparseloco",
        "distributed-lion",
        "lion-cub",
    ]
    bias_correction: bool
    clip: float
    block: int
    topology: Literal["sharded", "central"]
    hierarchy: Literal["auto", "flat", "hosts"]
    host_codec: Cast
    weighted: bool
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
    residual: Residual
    residue: Residual  # the old name of residual
    feedback: float
    feedback_up: float
    feedback_down: float


class _OneBit(TypedDict, total=False):
    warmup: int | Literal["auto"]
    freeze_step: int


class _Sync(TypedDict, total=False):
    sync: Literal["follow-lr", "doubling", "every", "custom"]
    sync_start: int
    sync_every: int | None
    sync_longest: int


class _ZeroOne(_Sync, total=False):
    variance_dense: int
    kappa: int
    variance_gap: int
    variance_longest: int
    freeze: int | Literal["never"]
    variance_steps: list[int]
    variance: Literal["gradient", "momentum"]
    sync_steps: list[int]
    delay: int
    delay_start: int
    var_freeze_step: int
    var_update_scaler: int
    local_step_scaler: int
    local_step_clipper: int


class _Efficient(TypedDict, total=False):
    theta: Literal["constant", "one-minus-over-t"]


class _Local(_Sync, total=False):
    outer: Literal["average", "slow-momentum", "nesterov", "sign"]
    outer_rate: float
    outer_momentum: float
    outer_betas: tuple[float, float] | list[float]
    outer_decay: float
    outer_penalty: float
    outer_clip: float
    delay: int
    mix: float
    parts: int


class _Lion(TypedDict, total=False):
    momentum_every: int


class _Birder(TypedDict, total=False):
    beta: float
    seed: int


class _Lamb(TypedDict, total=False):
    tensors: list[int]
    coeff_beta: float
    coeff_min: float
    coeff_max: float
    factor_min: float
    factor_max: float
    factor_threshold: float


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


class AdamWOptions(Engine, _Exact, _Coarse, Torch, Ours, total=False):
    pass


class OneBitAdamOptions(Engine, _Exact, _Coarse, _OneBit, Torch, Ours, total=False):
    pass


class ZeroOneAdamOptions(Engine, _Exact, _Coarse, _ZeroOne, Torch, Ours, total=False):
    pass


class EfficientAdamOptions(Engine, _Coarse, _Efficient, Torch, Ours, total=False):
    pass


class LocalAdamOptions(Engine, _Coarse, _Local, Torch, Ours, total=False):
    pass


class LionOptions(Engine, _Exact, _Coarse, _Lion, Torch, Ours, total=False):
    pass


class BirderOptions(Engine, _Coarse, _Birder, Torch, Ours, total=False):
    pass


class OneBitLambOptions(Engine, _Exact, _Coarse, _Lamb, Torch, Ours, total=False):
    warmup: int


class WorkerOptions(Engine, _Exact, _Coarse, _OneBit, _ZeroOne, _Efficient, _Local, _Lion, _Birder, _Lamb, total=False):
    betas: tuple[float, float] | list[float]
    eps: float
    weight_decay: float
    groups: list[dict[str, Any]]
    schedule: AnySchedule
    steps: int | None
