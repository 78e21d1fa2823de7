"""Every kernel against the engine's own, bit for bit.

The engine's kernels run on the host (`thinwire._thinwire._twins`), the device's wherever `device` says: on a GPU, or on the CPU under
Triton's interpreter. A NaN equals any other NaN; everything else must have the same bits.
"""

from __future__ import annotations

import dataclasses
import itertools
import zlib
from collections.abc import Iterator
from typing import Any

import numpy
import torch

from thinwire._thinwire import _twins as engine  # type: ignore[attr-defined]

from . import launch

Array = Any

KINDS = ("ordinary", "wild", "zero", "subnormal", "huge", "mixed")
CODECS = ("sign", *(f"uniform{width}" for width in range(2, 9)), "bf16", "f16", "f32")
RESIDUALS = ("f32", "bf16", "none")
_STOP = 0x7FFFFFFFFFFFFFFF


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one comparison found."""

    name: str
    equal: bool
    detail: str = ""


def make(kind: str, count: int, seed: str) -> Array:
    """Values of a kind; the same for the same seed."""
    random = numpy.random.default_rng(zlib.crc32(f"{kind} {seed}".encode()))
    x = random.standard_normal(count).astype(numpy.float32)
    if kind == "wild":
        x = numpy.ldexp(x, random.integers(-60, 60, count)).astype(numpy.float32)
    elif kind == "zero":
        x = numpy.where(random.random(count) < 0.5, numpy.float32(0.0), numpy.float32(-0.0))
    elif kind == "subnormal":
        x = numpy.ldexp(x, random.integers(-148, -124, count)).astype(numpy.float32)
    elif kind == "huge":
        x = (numpy.sign(x) * random.uniform(0.4e38, 1.6e38, count)).astype(numpy.float32)
    elif kind == "mixed":
        every = [make(other, count, seed) for other in KINDS[:4]]
        x = numpy.choose(random.integers(0, 4, count), every).astype(numpy.float32)
    elif kind == "nan":
        x[random.integers(0, max(count, 1), 1 if count else 0)] = numpy.nan
    elif kind != "ordinary":
        raise ValueError(f"invalid kind = {kind!r}: expected one of {', '.join(KINDS)} or nan")
    return numpy.ascontiguousarray(x, dtype=numpy.float32)


def difference(ours: Array, engines: Array) -> str:
    """Where bits differ, or nothing. All NaN are one."""
    if ours.dtype == numpy.float32:
        both_nan = numpy.isnan(ours) & numpy.isnan(engines)
        differs = (ours.view(numpy.uint32) != engines.view(numpy.uint32)) & ~both_nan
    else:
        differs = ours != engines
    places = numpy.flatnonzero(differs)
    if not len(places):
        return ""
    at = int(places[0])
    return f"{len(places)} of {len(ours)} differ, first at {at}: expected {engines[at]!r}, found {ours[at]!r}"


class Bench:
    """A device, and what was compared on it."""

    def __init__(self, device: str = "cpu") -> None:
        self.device = device
        self.outcomes: list[Outcome] = []

    def put(self, array: Array) -> torch.Tensor:
        return torch.from_numpy(array.copy()).to(self.device)

    def zeros(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(count, dtype=dtype, device=self.device)

    def same(self, name: str, ours: torch.Tensor, engines: Array) -> None:
        detail = difference(ours.cpu().numpy(), engines)
        self.outcomes.append(Outcome(name, not detail, detail))

    def true(self, name: str, holds: bool, detail: str = "") -> None:
        self.outcomes.append(Outcome(name, holds, "" if holds else detail))

    def residual(self, values: Array, kind: str) -> tuple[torch.Tensor | None, Array | None]:
        """The same residual for the device and for the engine."""
        if kind == "none":
            return None, None
        if kind == "f32":
            return self.put(values), values.copy()
        halves = numpy.zeros(2 * len(values), numpy.uint8)
        engine.encode("bf16", 512, values, None, False, halves)
        return self.put(halves).view(torch.int16), halves


def _bytes(codec: str, block: int, count: int) -> int:
    size: int = engine.encoded_len(codec, block, count)
    return size


def codec_twins(bench: Bench, codec: str, block: int, count: int, kind: str, residual: str) -> None:
    """Encode with error feedback, decode, and take back."""
    name = f"{codec} block {block} count {count} {kind} residual {residual}"
    x, e = make(kind, count, name), make("ordinary" if kind == "nan" else kind, count, f"e {name}")
    size = _bytes(codec, block, count)
    ours_e, engines_e = bench.residual(e, residual)
    payload, bad, engines = bench.zeros(size + 16, torch.uint8), bench.zeros(1, torch.int32), numpy.zeros(size, numpy.uint8)
    launch.pack("gradient", {"g": bench.put(x)}, codec, block, ours_e, payload, bad)
    fine = engine.encode(codec, block, x, engines_e, residual == "bf16", engines)
    bench.true(f"encode {name}: refused", fine == (bad.item() == 0), f"expected refused = {not fine}, found {bool(bad.item())}")
    if not fine:
        return
    bench.same(f"encode {name}: payload", payload[:size], engines)
    bench.true(f"encode {name}: past the payload", not payload[size:].any().item(), "bytes were written past the end")
    if ours_e is not None and engines_e is not None:
        bench.same(f"encode {name}: residual", ours_e.view(torch.uint8) if residual == "bf16" else ours_e, engines_e)

    out, expected = bench.zeros(count, torch.float32), numpy.empty(count, numpy.float32)
    ours = bench.put(numpy.append(engines, numpy.zeros(16, numpy.uint8)))
    launch.decode(codec, block, ours, out, bad)
    bench.true(f"decode {name}: refused", engine.decode(codec, block, engines, expected) == (bad.item() == 0))
    bench.same(f"decode {name}", out, expected)
    if ours_e is not None and engines_e is not None:
        launch.take_back(codec, block, ours, ours_e, bad)
        engine.take_back(codec, block, engines, engines_e, residual == "bf16")
        bench.same(f"take back {name}", ours_e.view(torch.uint8) if residual == "bf16" else ours_e, engines_e)


def serve_twins(bench: Bench, up: str, down: str, block: int, count: int, kind: str, residual: str, messages: int) -> None:
    """The owner's half: the mean of some messages, and E, coded."""
    name = f"serve {messages} x {up} to {down} block {block} count {count} {kind} residual {residual}"
    payloads = []
    for w in range(messages):
        payload = numpy.zeros(_bytes(up, block, count), numpy.uint8)
        x = make(kind, count, f"{w} {name}")
        if not engine.encode(up, block, x, numpy.zeros_like(x), False, payload):
            raise ValueError(f"{name}: message {w} cannot be coded")
        payloads.append(payload)
    each = -(-_bytes(up, block, count) // 16) * 16
    together = numpy.zeros(max(each * messages, 16), numpy.uint8)
    for w, payload in enumerate(payloads):
        together[w * each : w * each + len(payload)] = payload
    ours_e, engines_e = bench.residual(make(kind, count, f"E {name}"), residual)
    size = _bytes(down, block, count)
    out, bad, engines = bench.zeros(size + 16, torch.uint8), bench.zeros(1 + messages, torch.int32), numpy.zeros(size, numpy.uint8)
    launch.serve(bench.put(together), each, messages, float(messages), up, down, block, count, ours_e, out, bad)
    mean = numpy.zeros(count, numpy.float32)
    refused = engine.add_up(up, block, payloads, float(messages), mean)
    fine = engine.encode(down, block, mean, engines_e, residual == "bf16", engines)
    bench.true(f"{name}: refused", refused is None and (bad[0].item() == 0) == fine and not bad[1:].any().item(), f"found {bad.tolist()}")
    if fine:
        bench.same(f"{name}: payload", out[:size], engines)
        if ours_e is not None and engines_e is not None:
            bench.same(f"{name}: residual", ours_e.view(torch.uint8) if residual == "bf16" else ours_e, engines_e)


def scalars(group: int, limit: float = 1.0, shrink: float = 0.7) -> list[float]:
    """The numbers of a parameter group, each as an f32 has it: one at full speed, one at rest, one that never moves, two that are fast."""
    rate, decay, jump, moves, rates = (
        (3e-3, 0.9999, 0.3, 1.0, 7e-3),
        (0.0, 1.0, 0.3, 1.0, 0.0),
        (0.0, 1.0, 0.3, 0.0, 0.0),
        (0.5, 0.98, 50.0, 1.0, 1.5),
        (2.0, 0.9, 1e-3, 1.0, 3.0),
    )[group % 5]
    row = [0.9, 1 - 0.9, 0.999, 1 - 0.999, rate, decay, 1 / (1 - 0.999**7), 1e-8, shrink, limit, jump, moves, rates, decay**3]
    return [float(numpy.float32(number)) for number in row]


def cut(count: int, groups: int) -> list[int]:
    """Where `groups` parameter groups of `count` values end: uneven, within blocks."""
    return [*(count * (g + 1) // groups + (g % 2) * (g + 1 < groups and count > 4 * groups) for g in range(groups - 1)), count]


def state(count: int, kind: str, seed: str) -> dict[str, Array]:
    """The vectors of an optimizer. v is a variance, with zeros in it; "nan" is for the gradient alone."""
    other = "ordinary" if kind == "nan" else kind
    vectors = {name: make(other, count, f"{name} {seed}") for name in ("m", "u", "a", "x", "kept")}
    v = numpy.abs(make(other, count, f"v {seed}")) * numpy.float32(1e-4)
    v[::7] = 0.0
    return {**vectors, "v": v, "g": make(kind, count, f"g {seed}")}


#: The limit where coarse means lose nothing.
NO_LIMIT = 3.4028234663852886e38


def _groups(bench: Bench, count: int, groups: int) -> tuple[launch.Groups, list[tuple[int, int, list[float]]]]:
    ends = cut(count, groups)
    rows = [scalars(g, NO_LIMIT if groups == 2 else 1.0) for g in range(groups)]
    parts = list(zip([0, *ends[:-1]], ends, rows, strict=True))
    return launch.Groups.of(rows, ends, bench.device), parts


def source_twins(bench: Bench, source: str, codec: str, block: int, count: int, kind: str, groups: int, residual: str = "f32") -> None:
    """What is averaged, fused with encode."""
    name = f"pack {source} as {codec} block {block} count {count} {kind} residual {residual} groups {groups}"
    host = state(count, kind, name)
    ours = {vector: bench.put(values) for vector, values in host.items()}
    device_groups, parts = _groups(bench, count, groups)
    e = make("ordinary" if kind == "nan" else kind, count, f"e {name}")
    ours_e, engines_e = bench.residual(e, residual)
    size = _bytes(codec, block, count)
    payload, bad, engines = bench.zeros(size + 16, torch.uint8), bench.zeros(1, torch.int32), numpy.zeros(size, numpy.uint8)
    launch.pack(source, ours, codec, block, ours_e, payload, bad, device_groups)
    z = numpy.zeros(count, numpy.float32)
    if source in ("params", "unsent"):
        z = host["x" if source == "params" else "u"]
    elif source == "gradient":
        z = host["g"]
    else:
        for start, end, row in parts:
            engine.run(source, row, [host["g"][start:end], *(host[v][start:end] for v in launch.SOURCES[source]), z[start:end]])
    fine = engine.encode(codec, block, z, engines_e, residual == "bf16", engines)
    bench.true(f"{name}: refused", fine == (bad.item() == 0), f"expected refused = {not fine}, found {bool(bad.item())}")
    if fine and ours_e is not None and engines_e is not None:
        bench.same(f"{name}: payload", payload[:size], engines)
        bench.same(f"{name}: residual", ours_e.view(torch.uint8) if residual == "bf16" else ours_e, engines_e)
    for vector in ("m", "v", "u", "x"):
        bench.same(f"{name}: {vector}", ours[vector], host[vector])


def pass_twins(bench: Bench, name: str, count: int, kind: str, groups: int, codec: str | None = None, block: int = 512) -> None:
    """A pass on a vector, or fused with decode."""
    title = f"{name} on {codec or 'a vector'} count {count} {kind} groups {groups}"
    host = state(count, kind, title)
    ours = {vector: bench.put(values) for vector, values in host.items()}
    device_groups, parts = _groups(bench, count, groups)
    bad, jump = bench.zeros(1, torch.int32), bench.zeros(1, torch.int64) + _STOP
    given, given_here = host["g"], bench.put(host["g"])
    if codec:
        payload = numpy.zeros(_bytes(codec, block, count), numpy.uint8)
        if not engine.encode(codec, block, given, numpy.zeros_like(given), False, payload):
            raise ValueError(f"{title}: the mean cannot be coded")
        engine.decode(codec, block, payload, given)
        given_here = bench.put(numpy.append(payload, numpy.zeros(16, numpy.uint8)))
    launch.run(name, given_here, ours, bad, jump, device_groups, codec=codec, block=block)
    reads, writes = launch.PASSES[name]
    first = _STOP
    for start, end, row in parts:
        if name in ("keep", "replace", "anchor"):
            host[writes[0]][start:end] = (host["x"] if name == "anchor" else given)[start:end]
            continue
        has_input = [] if name == "fold_in" else [given[start:end].copy()]
        jumped = engine.run(name, row, [*has_input, *(host[v][start:end] for v in (*reads, *writes))])
        first = min(first, start + jumped if jumped is not None else _STOP)
    for vector in ("m", "v", "u", "a", "x", "kept"):
        bench.same(f"{title}: {vector}", ours[vector], host[vector])
    bench.true(f"{title}: jump", jump.item() == first, f"expected {first}, found {jump.item()}")


def compare_twins(bench: Bench, codec: str, block: int, count: int, kind: str, residual: str) -> None:
    """A mean that is also taken off the residual of a worker that compares."""
    name = f"compare {codec} block {block} count {count} {kind} residual {residual}"
    mean, e = make(kind, count, name), make(kind, count, f"e {name}")
    payload = numpy.zeros(_bytes(codec, block, count), numpy.uint8)
    engine.encode(codec, block, mean, numpy.zeros_like(mean), False, payload)
    engine.decode(codec, block, payload, mean)
    ours_e, _ = bench.residual(e, residual)
    if residual == "bf16":
        halves = bench.residual(e, "bf16")[1]
        engine.decode("bf16", 512, halves, e)
    bad, x = bench.zeros(1, torch.int32), bench.zeros(count, torch.float32)
    here = bench.put(numpy.append(payload, numpy.zeros(16, numpy.uint8)))
    launch.run("replace", here, {"x": x}, bad, bench.zeros(1, torch.int64), codec=codec, block=block, compares=ours_e)
    bench.same(f"{name}: x", x, mean)
    left = e - mean
    expected = bench.residual(left, residual)[1]
    if ours_e is not None and expected is not None:
        bench.same(f"{name}: residual", ours_e.view(torch.uint8) if residual == "bf16" else ours_e, expected)


def reduce_twins(bench: Bench, count: int, kind: str, start: int = 0) -> None:
    """Sums of tiles, the look for NaN, and the digest."""
    name = f"count {count} {kind}"
    x = make(kind, count, name)
    ours, bad = bench.put(x), bench.zeros(1, torch.int32)
    tiles = [engine.reduce_tile(at, x[at : at + launch.TILE]) for at in range(0, count, launch.TILE)]
    for squares, place in ((False, 0), (True, 1)):
        sums = launch.tile_sums(ours, squares).cpu().numpy()
        expected = numpy.array([tile[place] for tile in tiles], numpy.float64)
        both_nan = numpy.isnan(sums) & numpy.isnan(expected)
        equal = bool(((sums.view(numpy.uint64) == expected.view(numpy.uint64)) | both_nan).all())
        bench.true(f"{'sum of squares' if squares else 'sum'} {name}", equal, f"expected {expected}, found {sums}")
    launch.note_not_finite(ours, bad)
    finite = all(tile[2] for tile in tiles)
    bench.true(f"look for NaN {name}", (bad.item() == 0) == finite, f"expected finite = {finite}")
    digest = engine.reduce_tile(start, x)[3]
    found = launch.digest(ours, start)
    bench.true(f"digest {name} from {start}", found == digest, f"expected {digest:016x}, found {found:016x}")


def hostile_twins(bench: Bench) -> None:
    """Payloads that cannot be are refused, as the engine refuses them."""
    for codec in CODECS:
        block, count = 128, 300
        payload = numpy.zeros(_bytes(codec, block, count), numpy.uint8)
        engine.encode(codec, block, make("ordinary", count, codec), numpy.zeros(count, numpy.float32), False, payload)
        changes = {"NaN": b"\x00\x00\xc0\x7f", "infinity": b"\x00\x00\x80\x7f", "negative": b"\x00\x00\x80\xbf", "all ones": b"\xff" * 8}
        for change, put in changes.items():
            hostile = payload.copy()
            hostile[: len(put)] = numpy.frombuffer(put, numpy.uint8)
            if change == "all ones" and codec.startswith("uniform"):
                hostile = payload.copy()
                hostile[4:12] = 0xFF
            expected = engine.decode(codec, block, hostile, numpy.empty(count, numpy.float32))
            bad, out = bench.zeros(1, torch.int32), bench.zeros(count, torch.float32)
            launch.decode(codec, block, bench.put(numpy.append(hostile, numpy.zeros(16, numpy.uint8))), out, bad)
            bench.true(f"{codec} with {change}", (bad.item() == 0) == expected, f"expected accepted = {expected}")


def codec_suite(bench: Bench, codecs: tuple[str, ...] = CODECS) -> None:
    """Blocks, lengths around blocks, lanes and groups of 128, kinds and residuals: every length, and every pair of the last two."""
    for codec in codecs:
        pairs: Iterator[tuple[str, str]] = itertools.cycle(itertools.product((*KINDS, "nan"), RESIDUALS))
        cases = [(128, count) for count in (0, 1, 31, 33, 127, 128, 129, 255, 256, 257, 401)]
        cases += [(96, 101), (512, 511), (512, 513)]
        if codec in ("sign", "uniform5"):
            cases += [(100, 305), (7, 100), (128, 130), (128, 300), (256, 700), (128, 77), (128, 384), (64, 65), (1000, 1129)]
        if codec == "sign":
            cases += [(256, 300)] * 21 + [(4096, 4225)]
        if codec.startswith("uniform") and codec != "uniform5":
            cases = [(128, 1), (128, 129), (128, 257), (96, 101), (512, 511), (100, 130)]
            pairs = itertools.islice(pairs, int(codec[-1]), None)  # others for each width
        for block, count in cases:
            codec_twins(bench, codec, block, count, *next(pairs))
        compare_twins(bench, codec, 128, 200, "mixed", "f32")
    compare_twins(bench, "sign", 128, 200, "mixed", "bf16")


def owner_suite(bench: Bench) -> None:
    """One to nine messages; the same codec both ways, and some that differ."""
    several = itertools.cycle((1, 2, 5, 3, 9))
    for i, codec in enumerate(("sign", "sign", *CODECS)):
        for count in (129, 300):
            serve_twins(bench, codec, codec, 128, count, KINDS[i % 4], RESIDUALS[(i + count) % 3], next(several))
    serve_twins(bench, "f32", "sign", 512, 700, "wild", "bf16", 3)
    serve_twins(bench, "sign", "uniform4", 100, 205, "wild", "f32", 4)
    serve_twins(bench, "f32", "f32", 128, 129, "huge", "f32", 9)


def source_suite(bench: Bench) -> None:
    """Every source with every kind of values; codecs, lengths and numbers of groups take turns."""
    for i, (source, kind) in enumerate(itertools.product(launch.SOURCES, (*KINDS, "nan"))):
        codec = ("sign", "sign", "uniform4", "bf16")[i % 4]
        source_twins(bench, source, codec, 128, (257, 129, 383)[i % 3], kind, (1, 3, 5, 8, 2)[i % 5])


def pass_suite(bench: Bench) -> None:
    """Every pass with every kind of values, on a vector, and on a payload where it takes a mean."""
    for i, (name, kind) in enumerate(itertools.product(launch.PASSES, (*KINDS, "nan"))):
        pass_twins(bench, name, (1000, 129, 5003)[i % 3], kind, (1, 3, 5, 8, 2)[i % 5])
        if name not in ("anchor", "fold_in", "local") and kind in ("ordinary", "wild", "mixed"):
            pass_twins(bench, name, 200, kind, (1, 4)[i % 2], ("sign", "uniform4", "bf16")[i % 3], 128)


def reduction_suite(bench: Bench) -> None:
    """Lengths around tiles, and places past 2^32."""
    places = ((0, 0), (1, 5), (4095, 0), (4096, 3), (4097, 7), (9000, 1 << 33))
    for i, (count, start) in enumerate(places):
        for kind in ("ordinary", ("wild", "mixed", "subnormal", "huge", "nan", "zero")[i]):
            reduce_twins(bench, count, kind, start)


#: By name: what `python -m thinwire.device --only` takes.
SUITES = {
    "sign": lambda bench: codec_suite(bench, ("sign",)),
    "levels": lambda bench: codec_suite(bench, CODECS[1:8]),
    "casts": lambda bench: codec_suite(bench, CODECS[8:]),
    "owner": owner_suite,
    "sources": source_suite,
    "passes": pass_suite,
    "reductions": reduction_suite,
    "refusals": hostile_twins,
}
