"""The optimizers for PyTorch, by name.

Each takes the place of ``torch.optim.AdamW`` *and* of DDP: every rank computes the gradient of its own batch on the bare model, and
``step()`` does the averaging, coded as the optimizer has it. :mod:`thinwire._compressed` is what they have in common.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._compressed import _Compressed

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim.optimizer import ParamsT
    from typing_extensions import Unpack

    from ._options import (
        AdamWOptions,
        BirderOptions,
        EfficientAdamOptions,
        LionOptions,
        LocalAdamOptions,
        OneBitAdamOptions,
        OneBitLambOptions,
        ZeroOneAdamOptions,
    )

_ARGUMENTS = """
    Parameters
    ----------
    params : iterable
        Parameters, (name, parameter) pairs, or dicts with param groups, each with its own ``lr`` and ``weight_decay``. Float32 in the
        host's memory becomes parts of one flat vector; bfloat16, float16 and other devices go through a float32 master.
    lr : float
        The learning rate; any scheduler may change it, group by group, alike on all ranks.
    betas, eps, weight_decay
        As in ``torch.optim.AdamW``, but for the betas of Lion and Birder. They stay as they are.
    process_group : ProcessGroup or DeviceMesh, optional
        The ranks that train together, or a device mesh of one dimension; the default group without it. If ``torch.distributed`` is not
        initialised, one worker. Of a model that ``fully_shard`` has cut inside a replica, the ranks that hold the same shards in the
        other replicas (docs/fsdp.md).
    init : {{"check", "broadcast"}}
        What to do about initial parameters that differ between ranks: raise ValueError, or take rank 0's.
    deadline : float
        Seconds that a rank waits for another before it raises TimeoutError with the silent one's name.
    resume : path, optional
        A folder of :meth:`save` to go on from, also with another number of ranks. Its learning rates replace ``lr``, as those of a
        ``state_dict`` do.
    schedule : dict or function, optional
        What ``lr`` will be, which your scheduler still sets: a table such as ``{{"peak": 1e-3, "warmup": 100, "decay": "cosine",
        "steps": 1000}}``, or a function from the step, counted from 0, to the rate, together with ``steps``. A scheduler of PyTorch is
        read by :meth:`follow`. ``learning_rate`` is the old name of the table.
    steps : int, optional
        The number of steps of the run, for a schedule that does not have it.
    buffers : Module or iterable of tensors, optional
        The model, or the buffers of it that :meth:`sync` and :meth:`consensus` make equal on all ranks, such as BatchNorm's running
        statistics. With ``init="broadcast"`` all ranks start from rank 0's.
    buffer_sync : {{"mean", "rank0"}}
        How: the mean of floating-point buffers and rank 0's of all others, or rank 0's of all.
    device : {{"auto", "host", "gpu", "interpret"}}
        Where the state is and the arithmetic runs (docs/gpu.md). "auto": on the NVIDIA or AMD GPU that all parameters are on, else on the
        host. "gpu": the same, or ValueError. "host": always on the host. "interpret": the GPU's kernels on parameters in the host's
        memory, by Triton's interpreter and slowly, for tests; the program needs the environment variable TRITON_INTERPRET=1. All give the
        same bits, and ranks may differ in it. What a device has no kernel for raises NotImplementedError.
    **config
        The engine's words, such as ``preset``, ``codec``, ``feedback``, ``block``, ``clip``, ``weighted``, ``non_finite``,
        ``threads``{words}.

    Notes
    -----
    A parameter whose gradient is None counts as one whose gradient is 0: it goes on decaying, which in PyTorch's own it does not.
    ``clip_grad_norm_`` sees this rank's gradient alone; ``clip`` is the engine's own, and sees the mean in exact rounds.
"""


def _described(summary: str, words: str = "") -> str:
    return summary + "\n" + _ARGUMENTS.format(words=words)


class AdamW(_Compressed):
    __doc__ = _described(
        "AdamW on the exact mean of the gradients: the baseline, equal to ``torch.optim.AdamW`` under DDP to rounding.\n\n"
        "    With ``codec``, or the preset ``loco``, on the mean of coded gradients."
    )
    _name = "adam"

    if TYPE_CHECKING:  # for editors and type checkers: the keywords of this one

        def __init__(
            self,
            params: ParamsT,
            lr: float | Tensor = 1e-3,
            betas: tuple[float, float] = (0.9, 0.999),
            eps: float = 1e-8,
            weight_decay: float = 1e-2,
            **options: Unpack[AdamWOptions],
        ) -> None: ...


class OneBitAdam(_Compressed):
    __doc__ = _described(
        "1-bit Adam (arXiv 2102.02888): exact rounds during the warm-up, then one bit a parameter a step.\n\n"
        "    Tell it the length of the run (``schedule``, or ``follow``), of which 15 %, but at least 100 steps, are the warm-up; or\n"
        "    give ``warmup``. Without either the warm-up takes 1/(1 - beta2) steps, 1,000 by default, or more.",
        ", ``warmup``",
    )
    _name = "one-bit-adam"

    if TYPE_CHECKING:  # for editors and type checkers: the keywords of this one

        def __init__(
            self,
            params: ParamsT,
            lr: float | Tensor = 1e-3,
            betas: tuple[float, float] = (0.9, 0.999),
            eps: float = 1e-8,
            weight_decay: float = 1e-2,
            **options: Unpack[OneBitAdamOptions],
        ) -> None: ...


class ZeroOneAdam(_Compressed):
    __doc__ = _described(
        "0/1 Adam (arXiv 2202.06009): stale variance, local steps, and one bit a parameter when the ranks do talk.\n\n"
        "    Tell it the schedule of your learning rate (``schedule``, or ``follow``): by that it knows which rounds to leave out.\n"
        "    Without it, it talks at every step.",
        ", ``kappa``, ``variance_longest``, ``freeze``, ``sync``, ``sync_every``, ``sync_longest``, ``delay``",
    )
    _name = "zero-one-adam"

    if TYPE_CHECKING:  # for editors and type checkers: the keywords of this one

        def __init__(
            self,
            params: ParamsT,
            lr: float | Tensor = 1e-3,
            betas: tuple[float, float] = (0.9, 0.999),
            eps: float = 1e-8,
            weight_decay: float = 1e-2,
            **options: Unpack[ZeroOneAdamOptions],
        ) -> None: ...


class EfficientAdam(_Compressed):
    __doc__ = _described(
        "Efficient-Adam (arXiv 2205.14473): every rank's own Adam update, averaged in a few bits both ways.\n\n"
        "    It wants a higher learning rate than AdamW: about 1.6 times on the built-in GPT, where its best is 8e-3 and Adam's 5e-3\n"
        "    (docs/convergence.md). At AdamW's own rate its loss is a few per cent worse (2.6 % there, at one seed).",
        ", ``theta``",
    )
    _name = "efficient-adam"

    if TYPE_CHECKING:  # for editors and type checkers: the keywords of this one

        def __init__(
            self,
            params: ParamsT,
            lr: float | Tensor = 1e-3,
            betas: tuple[float, float] = (0.9, 0.999),
            eps: float = 1e-8,
            weight_decay: float = 1e-2,
            **options: Unpack[EfficientAdamOptions],
        ) -> None: ...


class LocalAdam(_Compressed):
    __doc__ = _described(
        "Local Adam: every rank takes AdamW steps of its own; every ``sync_every`` steps all move by what these come to.\n\n"
        "    The presets ``diloco`` (arXiv 2311.08105), ``streaming-diloco``, ``sparseloco``, ``slowmo``, ``fedavg``, ``dsm`` and ``co2``\n"
        "    are the papers'. Without one it is DiLoCo's outer step every 32 steps. With ``delay`` nobody waits for a mean, and with\n"
        "    ``parts`` each is of a part of the parameters. :meth:`consensus` shows the model that all ranks have in common, and sends\n"
        "    nothing.",
        ", ``outer``, ``outer_rate``, ``outer_momentum``, ``sync``, ``sync_every``, ``delay``, ``parts``",
    )
    _name = "local-adam"

    if TYPE_CHECKING:  # for editors and type checkers: the keywords of this one

        def __init__(
            self,
            params: ParamsT,
            lr: float | Tensor = 1e-3,
            betas: tuple[float, float] = (0.9, 0.999),
            eps: float = 1e-8,
            weight_decay: float = 1e-2,
            **options: Unpack[LocalAdamOptions],
        ) -> None: ...


class Lion(_Compressed):
    __doc__ = _described(
        "Lion on the votes of the ranks (arXiv 2404.00438): one bit a parameter both ways, and one vector of state.\n\n"
        "    It wants a learning rate 3 to 10 times lower than AdamW's, and a weight decay as much higher. With ``codec_down='bf16'`` the\n"
        "    votes are averaged instead of counted, which is better for an even number of ranks. The preset ``lion-cub`` is Lion Cub\n"
        "    (arXiv 2411.16462).",
        ", ``momentum_every``",
    )
    _name = "lion"
    _betas = (0.9, 0.99)

    if TYPE_CHECKING:  # for editors and type checkers: the keywords of this one

        def __init__(
            self,
            params: ParamsT,
            lr: float | Tensor = 1e-3,
            betas: tuple[float, float] = (0.9, 0.99),
            eps: float = 1e-8,
            weight_decay: float = 1e-2,
            **options: Unpack[LionOptions],
        ) -> None: ...


class Birder(_Compressed):
    __doc__ = _described(
        "Birder (NeurIPS 2023): a coin for every parameter that is right on average, one bit both ways, no residual.\n\n"
        "    It has one beta, for both of its averages: give ``beta``. Its noise does not fall with the number of ranks; with\n"
        "    ``codec_down='bf16'`` it does.",
        ", ``beta``, ``seed``",
    )
    _name = "birder"
    _betas = (0.95, 0.95)

    if TYPE_CHECKING:  # for editors and type checkers: the keywords of this one

        def __init__(
            self,
            params: ParamsT,
            lr: float | Tensor = 1e-3,
            betas: tuple[float, float] = (0.95, 0.95),
            eps: float = 1e-8,
            weight_decay: float = 1e-2,
            **options: Unpack[BirderOptions],
        ) -> None: ...


class OneBitLamb(_Compressed):
    __doc__ = _described(
        "1-bit LAMB (arXiv 2104.06069): 1-bit Adam with a step size for every tensor, for large batches.\n\n"
        "    The tensors are the parameters, unless ``tensors`` lists other lengths. A model in shards is refused.",
        ", ``warmup``, ``coeff_min``, ``coeff_max``, ``tensors``",
    )
    _name = "one-bit-lamb"

    def _words(self, config: dict[str, Any]) -> dict[str, Any]:
        lengths = [param.numel() for trained in self._trained for param in trained if param.numel()]
        return super()._words({"tensors": lengths, **config})

    if TYPE_CHECKING:  # for editors and type checkers: the keywords of this one

        def __init__(
            self,
            params: ParamsT,
            lr: float | Tensor = 1e-3,
            betas: tuple[float, float] = (0.9, 0.999),
            eps: float = 1e-8,
            weight_decay: float = 1e-2,
            **options: Unpack[OneBitLambOptions],
        ) -> None: ...
