"""Where an optimizer's vectors are and its arithmetic runs: on the host, or on the GPU that the parameters are on.

`thinwire.device` has the kernels. It is imported only where they are to run, because it needs Triton.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

log = logging.getLogger("thinwire")

Choice = Literal["auto", "host", "gpu", "interpret"]
CHOICES = ("auto", "host", "gpu", "interpret")
GO_ON = 'device="host" keeps the arithmetic on the host'


class Place(NamedTuple):
    """A device that has kernels."""

    device: torch.device
    name: str


def choose(choice: Any, params: Sequence[Tensor]) -> Place | None:
    """Where the vectors of `params` are to be; None: on the host."""
    if choice not in CHOICES:
        raise ValueError(f"invalid device = {choice!r}: expected one of {', '.join(CHOICES)} (for example \"host\")")
    if choice == "host":
        return None
    devices = sorted({str(param.device) for param in params})
    if choice == "interpret":
        return _interpreter(devices)
    problem = _problem(devices)
    if not problem:
        return Place(params[0].device, devices[0])
    if choice == "gpu":
        raise ValueError(f'invalid device = "gpu": {problem} ({GO_ON})')
    if any(device.startswith("cuda") for device in devices):
        log.warning("the arithmetic of this optimizer runs on the host: %s. %s, without this warning", problem, GO_ON)
    return None


def _problem(devices: list[str]) -> str:
    """Why kernels cannot run where the parameters are; nothing if they can."""
    if len(devices) != 1:
        return f"expected all parameters on one device, found {', '.join(devices)}"
    if not devices[0].startswith("cuda"):
        return f"expected parameters on an NVIDIA or AMD GPU, found {devices[0]}"
    return _without_triton()


def _without_triton() -> str:
    try:
        import triton  # noqa: F401
    except ImportError:
        return "Triton is not installed (it comes with PyTorch's wheels for GPUs, or: pip install triton)"
    return ""


def _interpreter(devices: list[str]) -> Place:
    said = 'invalid device = "interpret": expected'
    if devices != ["cpu"]:
        raise ValueError(f"{said} parameters in the host's memory, found {', '.join(devices)} (leave device out for the kernels there)")
    if problem := _without_triton():
        raise ValueError(f"{said} Triton, and {problem} ({GO_ON})")
    from triton import knobs

    if not knobs.runtime.interpret:
        raise ValueError(f"{said} the environment variable TRITON_INTERPRET=1 from the start of the program ({GO_ON})")
    return Place(torch.device("cpu"), "Triton's interpreter")


def check(place: Place, config: dict[str, Any]) -> None:
    """Refuses a configuration for which a device lacks something, before anyone waits for this rank."""
    from .device.launch import MOST_GROUPS, Codec, Missing

    for option in ("codec_up", "codec_down", "exact_codec"):
        if option in config:
            try:
                Codec.of(config[option])
            except Missing as missing:
                raise Missing(f"device {place.name}: {missing}") from None
    if len(config.get("groups", [])) > MOST_GROUPS:
        raise Missing(
            f"device {place.name}: parameter groups: expected 1 to {MOST_GROUPS}, found {len(config['groups'])} "
            f"(merge groups with equal options; or {GO_ON})"
        )
