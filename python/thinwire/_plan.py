"""Whether it will help on your network: the answer of ``thinwire plan``, from Python."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from . import _thinwire
from ._guess import guessing

if TYPE_CHECKING:
    from typing_extensions import Unpack

Path = str | os.PathLike[str]


class PlanOptions(TypedDict, total=False):
    """The keywords of :func:`plan`: the flags of ``thinwire plan``."""

    params: int | float | str
    model: Path
    preset: Literal["bert-base", "bert-large", "gpt2", "resnet18-imagenet"]
    deepspeed: Path
    compute: float | str
    sharing: int
    cores: int
    bench: Path
    device: Path
    without_packing: bool
    memory: int | float | str
    workers: int
    hosts: int
    bandwidth: float | str
    latency: float | str
    network: Path
    steps: int | float | str
    warmup: int
    decay: Literal["cosine", "linear", "step", "constant", "inverse-sqrt"]
    clip: bool
    codecs: list[str]
    also: list[str]
    simulate: bool
    spread: float | str
    slow_host: float | str
    slow_link: float | str
    jitter: float | str
    seed: int


def plan(**question: Unpack[PlanOptions]) -> dict[str, Any]:
    """What each method would cost on a network, before anything runs: the answer of ``thinwire plan --json``, as a dict.

    ::

        answer = thinwire.plan(params=110e6, workers=16, bandwidth="1Gb/s", compute="300ms", without_packing=True)
        answer["recommendation"]["reason"]          # one sentence; it may begin with "No"
        for method in answer["methods"]:
            print(method["name"], method["step_seconds"], method["bytes_sent_per_worker"])

    Needed are the model, ``workers``, ``bandwidth`` and ``compute``, or what stands for them. Rates, times and sizes are texts
    with a unit, or numbers of bits a second, seconds and bytes. ``None`` is as if the keyword were not there.

    Parameters
    ----------
    params, model, preset
        Parameters of the model (``110e6`` or ``"110M"``); or a safetensors file in which they are counted; or a paper's model and
        settings (``"bert-base"``, ``"bert-large"``, ``"gpt2"``, ``"resnet18-imagenet"``), which the other keywords override.
    compute
        Time of forward and backward in one step of one worker (``"300ms"``, ``0.3``).
    workers, hosts
        Workers, and the hosts that they are on, equally many on each. Default: one host for each worker.
    bandwidth, latency
        Rate of each host's link (``"1Gb/s"``, ``1e9``), and the time to another host, one way (default ``"50us"``).
    network
        A file that ``thinwire probe --json`` wrote: workers, hosts, rate and latency as measured.
    device
        Where the optimizer's arithmetic runs: ``"cpu"`` (this machine's, measured), or by arithmetic ``"v100"``, ``"a100"``,
        ``"h100"``, ``"b200"``, ``"rtx4090"``, ``"mi300x"``, or a file that ``python -m thinwire.device --json`` wrote.
        Default: ``"cpu"``, and with a preset ``"v100"``.
    bench, without_packing
        A file that ``thinwire bench --json`` wrote; or no packing at all, only computing and the network. Without these and a
        GPU, packing is measured when the function is called, in a few seconds.
    memory
        Memory of a worker's device (``"24GB"``): methods that do not fit are marked and not advised. Default: that of ``device``.
    sharing, cores
        Workers that share a machine's cores (default: those of a host), and how many cores (default: this machine's).
    steps, warmup, decay, clip
        Steps of the run (default 10,000); steps of linear warm-up (default: a tenth of them); ``"cosine"`` (the default),
        ``"linear"``, ``"step"``, ``"constant"`` or ``"inverse-sqrt"``; whether the gradient is clipped.
    deepspeed
        A DeepSpeed configuration: its optimizer and its schedule are planned, and the others are compared with it.
        ``answer["program"]`` then has the lines of PyTorch that take its place.
    codecs, also
        Codecs of Efficient-Adam, and optimizers and presets to plan beside the usual ones (``["lion", "diloco"]``).
    simulate, spread, slow_host, slow_link, jitter, seed
        Simulate the run by events. Computing varies by ``spread`` (``"10%"``), one host and one link are so many times slower,
        and messages come late by ``jitter`` on average.

    Returns
    -------
    dict
        What ``thinwire plan --json`` prints for the same flags; ``schemas/plan.json`` describes it. Its texts name the
        command's flags: ``--without-packing`` is ``without_packing``.

    Raises
    ------
    ValueError
        If something is missing or makes no sense; says what was expected.
    FileNotFoundError
        If a file is not there.
    """
    with guessing():
        answer: dict[str, Any] = json.loads(_thinwire.answer(json.dumps(question, allow_nan=False, default=_plain)))
    return answer


def _plain(value: Any) -> Any:
    """A number of NumPy or PyTorch, or a path."""
    return value.item() if hasattr(value, "item") else os.fspath(value)
