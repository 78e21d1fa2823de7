"""Calls of the kernels on flat tensors: which kernel, how many programs, and what is refused.

Every tensor is contiguous and on one device. Vectors are float32. A residual is float32, or int16 with the bits of bf16. A payload is
uint8 and starts at a multiple of 16 bytes. `bad` is int32: [0] is set where a value to be coded is not finite, [1 + w] where message w
cannot be. The caller clears it before and looks at it after.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import threading
from collections.abc import Sequence
from typing import Any

import torch
from triton import knobs

from . import kernels
from .formulas import SCALARS, SHARED

MOST_GROUPS = 8
MAX_BLOCK = 4096
TILE = 4096

#: What a pass reads and writes beside its input, in the engine's order.
PASSES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "adam": ((), ("m", "v", "x")),
    "adam_after_coarse": ((), ("m", "v", "x")),
    "descend": (("v",), ("m", "x")),
    "anchor": (("x",), ("a",)),
    "local": (("v",), ("m", "u", "x")),
    "rebase": (("v", "a"), ("m", "u", "x")),
    "first_rebase": (("v",), ("m", "x")),
    "fold_in": (("v", "a"), ("m", "u", "x")),
    "subtract": ((), ("x",)),
    "keep": ((), ("kept",)),
    "replace": ((), ("x",)),
}

#: What a source makes the averaged vector of, beside the gradient; the first of each is `vector` itself.
SOURCES: dict[str, tuple[str, ...]] = {
    "gradient": (),
    "params": ("x",),
    "unsent": ("u",),
    "blend": ("m",),
    "progress": ("m", "u"),
    "first_progress": ("m",),
    "own_update": ("m", "v"),
}

#: Passes and sources of the engine that there is no kernel for yet: the optimizers that need them are refused on a device by name.
WITHOUT_KERNEL = frozenset(
    {
        "abstain",
        "arrive",
        "birder_ratio",
        "correct",
        "depart",
        "difference",
        "first_rebase_both",
        "lamb_momentum",
        "lamb_of_params",
        "lamb_of_ratio",
        "lamb_stride",
        "lamb_warm_up",
        "lion_direction",
        "mix",
        "mixed_average",
        "mixed_nesterov",
        "mixed_sign",
        "mixed_slow_momentum",
        "momentum",
        "outer_average",
        "outer_nesterov",
        "outer_sign",
        "outer_slow_momentum",
        "own_progress",
        "rebase_both",
        "replace_momentum",
        "return",
        "return_all",
        "stride",
        "stride_by_sign",
    }
)

_LIES = {"params": "x", "unsent": "u"}
_STORES = ("keep", "replace")


class Missing(NotImplementedError):
    """A codec or a pass that there is no kernel for."""


@dataclasses.dataclass(frozen=True)
class Codec:
    """A codec as the kernels know it: its kind, and the bits of a code."""

    name: str
    kind: str
    width: int

    @staticmethod
    def of(name: str) -> Codec:
        if name == "sign":
            return Codec(name, "sign", 1)
        if re.fullmatch("uniform[2-8]", name):
            return Codec(name, "uniform", int(name[7:]))
        if name in ("bf16", "f16", "f32"):
            return Codec(name, name, 32 if name == "f32" else 16)
        raise Missing(
            f"codec {name!r} has no kernel for this device: expected sign, uniform2 to uniform8, bf16, f16 or f32 "
            f'(choose one of them, or keep the arithmetic on the host with device="host")'
        )

    @property
    def has_scales(self) -> bool:
        return self.kind in ("sign", "uniform")

    def encoded_len(self, block: int, count: int) -> int:
        """The bytes of `count` values in blocks of `block`."""
        if not self.has_scales:
            return count * self.width // 8
        whole, rest = divmod(count, block)
        return whole * (4 + -(-block * self.width // 8)) + (4 + -(-rest * self.width // 8) if rest else 0)

    def aligned(self, block: int) -> bool:
        """Whether blocks and their tiles of 32 values begin at multiples of four bytes."""
        return block % 32 == 0


@dataclasses.dataclass(frozen=True)
class Groups:
    """The scalars of each parameter group, and where each group ends, on the device."""

    scalars: torch.Tensor
    ends: torch.Tensor
    padded: int

    @staticmethod
    def of(scalars: Sequence[Sequence[float]], ends: Sequence[int], device: Any = "cpu") -> Groups:
        """One row of `formulas.SCALARS` a group, and the place after its last value."""
        if len(scalars) != len(ends):
            raise ValueError(f"scalars: expected one row for each of {len(ends)} parameter groups, found {len(scalars)}")
        if not 1 <= len(ends) <= MOST_GROUPS:
            raise Missing(
                f"parameter groups: expected 1 to {MOST_GROUPS} on a device, found {len(ends)} "
                f'(merge groups with equal options, or keep the arithmetic on the host with device="host")'
            )
        if any(len(row) != len(SCALARS) for row in scalars):
            raise ValueError(f"scalars: expected {len(SCALARS)} numbers a parameter group: {', '.join(SCALARS)}")
        for name in SHARED:
            if len({row[SCALARS.index(name)] for row in scalars}) > 1:
                raise ValueError(f"scalars: expected the same {name} for all parameter groups")
        padded = 1 << (len(ends) - 1).bit_length()
        more = padded - len(ends)
        rows = [*scalars, *[scalars[-1]] * more]
        return Groups(
            torch.tensor(rows, dtype=torch.float32, device=device).reshape(-1),
            torch.tensor([*ends, *[ends[-1]] * more], dtype=torch.int64, device=device),
            padded,
        )


@dataclasses.dataclass(frozen=True)
class Shape:
    """How a launch is cut: blocks a program, and warps. Results do not depend on it."""

    rows: int
    warps: int

    @staticmethod
    def here(blocks: int) -> Shape:
        """For a vector of so many blocks, on this device."""
        if knobs.runtime.interpret:
            # An interpreted program costs the same for one row as for many. Two programs, so that there is a border between them.
            return Shape(1 << max((blocks - 1) // 2, 0).bit_length(), 1)
        # One warp, and four values a thread in each tile: no barrier, and loads of 16 bytes.
        return Shape(8 if torch.version.hip else 4, 1)


#: The interpreter keeps what it runs in global variables; workers may be threads.
_INTERPRETER = threading.Lock()


def _launch(kernel: Any, programs: int, *arguments: Any, warps: int, **constants: Any) -> None:
    if programs:
        with _INTERPRETER if knobs.runtime.interpret else contextlib.nullcontext():
            # Fused multiply-add rounds once where the engine rounds twice.
            kernel[(programs,)](*arguments, **constants, num_warps=warps, enable_fp_fusion=False)


def _residual(e: torch.Tensor | None) -> str:
    if e is None:
        return "none"
    kinds = {torch.float32: "f32", torch.int16: "bf16"}
    if e.dtype not in kinds:
        raise TypeError(f"residual: expected float32, or int16 for the bits of bf16, found {e.dtype}")
    return kinds[e.dtype]


def _check_block(block: int) -> None:
    if not 1 <= block <= MAX_BLOCK:
        raise ValueError(f"invalid block = {block}: expected 1 to {MAX_BLOCK}")


def _blocks(codecs: Sequence[Codec], block: int) -> int:
    """Casts have no blocks: they are cut in parts of 32, which lie side by side."""
    _check_block(block)
    return block if any(codec.has_scales for codec in codecs) else 32


def _encode(
    inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor], source: str, groups: Groups | None, start: int,
    messages: tuple[int, int, float], from_: Codec | None, to: Codec, block: int, e: torch.Tensor | None, out: torch.Tensor,
    bad: torch.Tensor, count: int, shape: Shape | None,
) -> None:  # fmt: skip
    cut = _blocks([to] + ([from_] if from_ else []), block)
    if out.numel() < to.encoded_len(block, count):
        raise ValueError(f"payload: expected room for {to.encoded_len(block, count)} bytes, found {out.numel()}")
    if e is not None and e.numel() < count:
        raise ValueError(f"residual: expected {count} values, found {e.numel()}")
    shape = shape or Shape.here(-(-count // cut))
    scalars, ends, padded = (groups.scalars, groups.ends, groups.padded) if groups else (bad, bad, 1)
    each, several, divisor = messages
    # fmt: off
    _launch(
        kernels.encode, -(-count // (cut * shape.rows)),
        *inputs, scalars, ends, out if e is None else e, out, bad, start, count, each, several, divisor,
        SOURCE=source, FROM=from_.kind if from_ else "none", FROM_WIDTH=from_.width if from_ else 0,
        FROM_ALIGNED=bool(from_ and from_.aligned(cut)),
        TO=to.kind, WIDTH=to.width, ALIGNED=to.aligned(cut), RESIDUAL=_residual(e),
        GROUPS=padded, BLOCK=cut, ROWS=shape.rows, warps=shape.warps,
    )
    # fmt: on


def pack(
    source: str, vectors: dict[str, torch.Tensor], codec: str, block: int, residual: torch.Tensor | None, out: torch.Tensor,
    bad: torch.Tensor, groups: Groups | None = None, start: int = 0, shape: Shape | None = None,
) -> None:  # fmt: skip
    """A worker's payload: z = (the source's vector) + e, coded into `out`; e keeps the rest.

    `vectors` has the gradient as "g" and the rest by the names in `SOURCES`; all start at place `start` of the flat vector.
    """
    if source not in SOURCES:
        raise Missing(f"source {source!r} has no kernel for this device: expected one of {', '.join(SOURCES)}")
    lies = source in ("gradient", *_LIES)
    if lies:
        first = vectors[_LIES.get(source, "g")]
        inputs = (first, first, first)
    else:
        named = [vectors[name] for name in SOURCES[source]]
        inputs = (vectors["g"], named[0], named[-1])
    if not lies and groups is None:
        raise ValueError(f"source {source!r}: expected the scalars of the parameter groups")
    name = "vector" if lies else source
    _encode(inputs, name, groups, start, (0, 0, 1.0), None, Codec.of(codec), block, residual, out, bad, inputs[0].numel(), shape)


def serve(
    payloads: torch.Tensor, each: int, messages: int, divisor: float, from_codec: str, codec: str, block: int, count: int,
    residual: torch.Tensor | None, out: torch.Tensor, bad: torch.Tensor, shape: Shape | None = None,
) -> None:  # fmt: skip
    """An owner's payload: z = (the sum of the messages' values) / divisor + E, coded; E keeps the rest.

    The messages lie `each` bytes apart, a multiple of 16. A relay that adds up calls it with a divisor of 1.
    """
    from_, to = Codec.of(from_codec), Codec.of(codec)
    if each % 16:
        raise ValueError(f"messages: expected a multiple of 16 bytes between them, found {each}")
    if bad.numel() < 1 + messages:
        raise ValueError(f"bad: expected {1 + messages} numbers, found {bad.numel()}")
    inputs = (payloads, payloads, payloads)
    _encode(inputs, "mean", None, 0, (each, messages, float(divisor)), from_, to, block, residual, out, bad, count, shape)


def _apply(
    name: str, given: torch.Tensor, from_: Codec | None, block: int, reads: list[torch.Tensor], writes: list[torch.Tensor],
    count: int, bad: torch.Tensor, jump: torch.Tensor, groups: Groups | None, start: int, e: torch.Tensor | None, shape: Shape | None,
) -> None:  # fmt: skip
    cut = _blocks([from_] if from_ else [], block)
    shape = shape or Shape.here(-(-count // cut))
    if not knobs.runtime.interpret and cut == 32:
        shape = Shape(shape.rows * 8, shape.warps * 2)  # such a block is one tile: more of them a program
    scalars, ends, padded = (groups.scalars, groups.ends, groups.padded) if groups else (bad, bad, 1)
    r0, r1 = (*reads, given, given)[:2]
    w0, w1, w2 = (*writes, given, given, given)[:3]
    # fmt: off
    _launch(
        kernels.apply, -(-count // (cut * shape.rows)),
        given, r0, r1, w0, w1, w2, scalars, ends, given if e is None else e, bad, jump, start, count,
        PASS=name, FROM=from_.kind if from_ else "vector", WIDTH=from_.width if from_ else 0,
        ALIGNED=bool(from_ and from_.aligned(cut)), RESIDUAL=_residual(e),
        GROUPS=padded, BLOCK=cut, ROWS=shape.rows, warps=shape.warps,
    )
    # fmt: on


def run(
    name: str, given: torch.Tensor | None, vectors: dict[str, torch.Tensor], bad: torch.Tensor, jump: torch.Tensor,
    groups: Groups | None = None,
    start: int = 0, codec: str | None = None, block: int = 512, compares: torch.Tensor | None = None, shape: Shape | None = None,
) -> None:  # fmt: skip
    """A pass, on a gradient or a mean in `given`, or with `codec` on the payload there.

    `jump`, an int64, becomes the first place that a pass moved too far, if that is less. `compares` is a residual that the mean is taken
    off: of a worker that compares its own state with the others'.
    """
    if name not in PASSES:
        raise Missing(f"pass {name!r} has no kernel for this device: expected one of {', '.join(PASSES)}")
    reads, writes = ([vectors[vector] for vector in some] for some in PASSES[name])
    given = writes[0] if given is None else given
    if groups is None and name not in ("anchor", *_STORES):
        raise ValueError(f"pass {name!r}: expected the scalars of the parameter groups")
    kernel = "store" if name in _STORES else name
    from_ = Codec.of(codec) if codec else None
    _apply(kernel, given, from_, block, reads, writes, writes[0].numel(), bad, jump, groups, start, compares, shape)


def decode(codec: str, block: int, payload: torch.Tensor, out: torch.Tensor, bad: torch.Tensor, shape: Shape | None = None) -> None:
    """out ← what a payload stands for."""
    _apply("store", payload, Codec.of(codec), block, [], [out], out.numel(), bad, bad, None, 0, None, shape)


def take_back(codec: str, block: int, payload: torch.Tensor, residual: torch.Tensor, bad: torch.Tensor, shape: Shape | None = None) -> None:
    """e ← e + q: a mean was taken without this payload."""
    _apply("take_back", payload, Codec.of(codec), block, [], [], residual.numel(), bad, bad, None, 0, residual, shape)


def tile_sums(x: torch.Tensor, squares: bool = False) -> torch.Tensor:
    """The sum of each 4,096 values, or of their squares, in float64. The sum of all is their sum, in order."""
    out = torch.empty(-(-x.numel() // TILE), dtype=torch.float64, device=x.device)
    shape = Shape.here(out.numel())
    _launch(kernels.add_tiles, -(-out.numel() // shape.rows), x, out, x.numel(), SQUARES=squares, ROWS=shape.rows, warps=shape.warps)
    return out


def note_not_finite(x: torch.Tensor, bad: torch.Tensor) -> None:
    """Sets bad[0] if a value is NaN, or larger than 2^62."""
    rows = 256
    _launch(kernels.look_for_nan, -(-x.numel() // (rows * 32)), x, bad, x.numel(), ROWS=rows, warps=8)


def digest(x: torch.Tensor, start: int = 0) -> int:
    """The engine's digest of values that start at place `start`: a number below 2^64."""
    rows = 256
    out = torch.zeros(-(-x.numel() // (rows * 32)), dtype=torch.int64, device=x.device)
    _launch(kernels.digest, out.numel(), x, out, start, x.numel(), ROWS=rows, warps=8)
    return int(out.sum().item()) & 0xFFFFFFFFFFFFFFFF
