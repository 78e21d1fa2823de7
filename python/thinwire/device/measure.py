"""The bandwidth of each kernel on a device, beside a copy of the same length.

A kernel's bytes are those that it must move: every vector it reads once and every one it writes once. A kernel of this kind cannot be
faster than a copy, and should be near it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from . import launch, twins

MESSAGES = 8


def all_kernels(device: str, values: int, repeats: int = 10) -> list[dict[str, Any]]:
    """GB/s of each kernel, and its part of a copy's."""
    values = max(values // 4096, 1) * 4096
    rows = [(name, size, seconds_of(call, device, repeats)) for name, size, call in calls(device, values)]
    copy = rows[0][1] / rows[0][2]
    return [
        {"kernel": name, "bytes": size, "seconds": seconds, "gigabytes_per_second": size / seconds / 1e9, "of_copy": size / seconds / copy}
        for name, size, seconds in rows
    ]


def seconds_of(call: Callable[[], Any], device: str, repeats: int) -> float:
    """Of one call, after one that compiles; the shortest of some."""
    if device == "cpu":  # the interpreter, for tests
        began = time.perf_counter()
        call()
        return max(time.perf_counter() - began, 1e-9)
    call()
    times: list[float] = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1000)
    return min(times)


def calls(device: str, values: int) -> list[tuple[str, int, Callable[[], Any]]]:
    """A name, the bytes that must be moved, and the call. The first is the copy."""
    random = torch.Generator(device=device).manual_seed(0)
    vectors = {name: torch.randn(values, device=device, generator=random) * 1e-3 for name in ("g", "m", "u", "a", "x", "kept")}
    vectors["v"] = vectors["m"].square() + 1e-12
    groups = launch.Groups.of([twins.scalars(0)], [values], device)
    bad = torch.zeros(1 + MESSAGES, dtype=torch.int32, device=device)
    jump = torch.zeros(1, dtype=torch.int64, device=device)
    e, halves = torch.zeros(values, device=device), torch.zeros(values, dtype=torch.int16, device=device)
    out = torch.empty_like(vectors["x"])
    found: list[tuple[str, int, Callable[[], Any]]] = [("copy", 8 * values, lambda: out.copy_(vectors["x"]))]

    def add(name: str, size: int, call: Callable[..., Any], *arguments: Any, **keywords: Any) -> None:
        found.append((name, size, lambda: call(*arguments, **keywords)))

    for codec in ("sign", "uniform4", "bf16", "f16", "f32"):
        size = launch.Codec.of(codec).encoded_len(512, values)
        each = -(-size // 16) * 16
        payload = torch.zeros(each, dtype=torch.uint8, device=device)
        add(f"encode {codec}", 12 * values + size, launch.pack, "gradient", vectors, codec, 512, e, payload, bad)
        add(f"decode {codec}", 4 * values + size, launch.decode, codec, 512, payload, out, bad)
    size = launch.Codec.of("sign").encoded_len(512, values)
    payload = torch.zeros(size, dtype=torch.uint8, device=device)
    add("encode sign, bf16 residual", 8 * values + size, launch.pack, "gradient", vectors, "sign", 512, halves, payload, bad)
    for source, read in (("blend", 2), ("progress", 3), ("first_progress", 2), ("own_update", 5)):
        moved = (4 * read + 8) * values + size
        add(f"{source} + encode sign", moved, launch.pack, source, vectors, "sign", 512, e, payload, bad, groups)
    part = max(values // MESSAGES // 512, 1) * 512
    size = launch.Codec.of("sign").encoded_len(512, part)
    each = -(-size // 16) * 16
    up = torch.zeros(each * MESSAGES, dtype=torch.uint8, device=device)
    down = torch.zeros(each, dtype=torch.uint8, device=device)
    moved = 8 * part + (MESSAGES + 1) * size
    add(
        f"serve {MESSAGES} x sign", moved, launch.serve, up, each, MESSAGES, float(MESSAGES), "sign", "sign", 512, part, e[:part], down, bad
    )
    size = launch.Codec.of("sign").encoded_len(512, values)
    for name, (reads, writes) in launch.PASSES.items():
        moved = 4 * values * (1 + len(reads) + 2 * len(writes))
        if name in ("anchor", "keep", "replace"):
            moved = 8 * values
        elif name == "descend":
            moved = 20 * values  # m is written, not read
        elif name in ("rebase", "fold_in"):
            moved = 28 * values
        add(f"{name}, on a vector", moved, launch.run, name, vectors["g"], vectors, bad, jump, groups)
        if name in ("descend", "rebase", "first_rebase", "subtract"):
            fused = moved - 4 * values + size
            add(f"decode sign + {name}", fused, launch.run, name, payload, vectors, bad, jump, groups, codec="sign")
    add("sum", 4 * values, launch.tile_sums, vectors["v"])
    add("sum of squares", 4 * values, launch.tile_sums, vectors["g"], True)
    add("look for NaN", 4 * values, launch.note_not_finite, vectors["g"], bad)
    add("digest", 4 * values, launch.digest, vectors["x"])
    return found
