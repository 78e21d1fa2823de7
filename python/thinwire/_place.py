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


def choose(choice: Any, params: Sequence[Tensor], needs: tuple[list[str], list[str]], config: dict[str, Any]) -> Place | None:
    """Where the vectors of `params` are to be; None: on the host.

    `needs` are the passes and codecs that a run can ask for. What a device has no kernel for is refused; a device whose bits differ
    from the engine's is not used.
    """
    if choice not in CHOICES:
        raise ValueError(f'invalid device = {choice!r}: expected one of {", ".join(CHOICES)} (for example "host")')
    if choice == "host":
        return None
    devices = sorted({str(param.device) for param in params})
    place, problem = _find(choice, devices, params[0].device)
    if place is not None:
        _check(place, needs, config)
        problem = _difference(place, needs, config)
    if not problem:
        return place
    if choice != "auto":
        raise ValueError(f'invalid device = "{choice}": {problem} ({GO_ON})')
    if any(not device.startswith("cpu") for device in devices):
        log.warning("the arithmetic of this optimizer runs on the host: %s. %s, without this warning", problem, GO_ON)
    return None


def _find(choice: Choice, devices: list[str], device: torch.device) -> tuple[Place | None, str]:
    """A device that could be used, or why there is none."""
    if choice == "interpret":
        problem = _without_interpreter(devices)
        return (None, problem) if problem else (Place(torch.device("cpu"), "Triton's interpreter"), "")
    problem = _problem(devices)
    return (None, problem) if problem else (Place(device, devices[0]), "")


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


def _without_interpreter(devices: list[str]) -> str:
    if devices != ["cpu"]:
        return f"expected parameters in the host's memory, found {', '.join(devices)} (leave device out for the kernels there)"
    if problem := _without_triton():
        return problem
    from triton import knobs

    return "" if knobs.runtime.interpret else "expected the environment variable TRITON_INTERPRET=1 from the start of the program"


def _check(place: Place, needs: tuple[list[str], list[str]], config: dict[str, Any]) -> None:
    """Refuses what the device has no kernel for, before anyone waits for this rank."""
    from .device.launch import MOST_GROUPS, PASSES, SOURCES, Codec, Missing

    passes, codecs = needs
    for codec in codecs:
        try:
            Codec.of(codec)
        except Missing as missing:
            raise Missing(f"device {place.name}: {missing}") from None
    if lacking := [name for name in passes if name not in PASSES and name not in SOURCES]:
        raise Missing(f"device {place.name}: pass {lacking[0]!r} has no kernel ({GO_ON})")
    if option := _without_kernel(config):
        raise Missing(f"device {place.name}: {option} has no kernel ({GO_ON})")
    if len(config.get("groups", [])) > MOST_GROUPS:
        raise Missing(
            f"device {place.name}: parameter groups: expected 1 to {MOST_GROUPS}, found {len(config['groups'])} "
            f"(merge groups with equal options; or {GO_ON})"
        )


def _without_kernel(config: dict[str, Any]) -> str:
    """An option that only the host's loops know, if there is one."""
    if config.get("residual") == "i8":
        return 'residual = "i8"'
    for way in ("feedback_up", "feedback_down"):
        if config.get(way, 1.0) not in (0.0, 1.0):
            return f"{way} = {config[way]}"
    return "weighted = True" if config.get("weighted") else ""


def _difference(place: Place, needs: tuple[list[str], list[str]], config: dict[str, Any]) -> str:
    """How the device differs from the engine in what this optimizer asks of it."""
    from .device import proof

    problem = proof.problem(place.device, proof.Needs.of(needs, config))
    return (
        f"{place.name} does not give the engine's bits: {problem} (please report it with `python -m thinwire.device --json`)"
        if problem
        else ""
    )
