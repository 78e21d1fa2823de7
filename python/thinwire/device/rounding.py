"""Numbers of 16 bits, and residuals, in integer arithmetic.

No device's own conversion is used: they differ for subnormal numbers and past the largest one. Here every device rounds as the engine
does, to nearest, halves to even, and a magnitude past the largest finite number becomes that largest one. The engine's twins are
`kernel/bf16.rs` and `codec/cast.rs`.
"""

# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def is_finite(x):
    return (x.to(tl.int32, bitcast=True) & 0x7FFFFFFF) < 0x7F800000


@triton.jit
def to_bf16(z):
    """The 16 bits of the nearest bf16 to a finite z, as int32."""
    bits = z.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    rounded = (magnitude + 0x7FFF + ((magnitude >> 16) & 1)) >> 16
    return ((bits >> 16) & 0x8000) | tl.minimum(rounded, 0x7F7F)


@triton.jit
def from_bf16(half):
    return (half << 16).to(tl.float32, bitcast=True)


@triton.jit
def to_f16(z):
    """The 16 bits of the nearest f16 to a finite z, as int32."""
    bits = z.to(tl.int32, bitcast=True)
    magnitude = tl.minimum(bits & 0x7FFFFFFF, 0x477FE000)  # 65504
    normal = (magnitude - 0x38000000 + 0xFFF + ((magnitude >> 13) & 1)) >> 13
    # An f32 between 1/2 and 1 counts in steps of 2^-24, as a subnormal f16 does: this addition rounds.
    small = (magnitude.to(tl.float32, bitcast=True) + 0.5).to(tl.int32, bitcast=True) - 0x3F000000
    return ((bits >> 16) & 0x8000) | tl.where(magnitude >= 0x38800000, normal, small)


@triton.jit
def from_f16(half):
    magnitude = half & 0x7FFF
    normal = ((magnitude << 13) + 0x38000000).to(tl.float32, bitcast=True)
    special = ((magnitude << 13) + 0x70000000).to(tl.float32, bitcast=True)  # infinities and NaN, which are refused
    small = magnitude.to(tl.float32) * 5.9604644775390625e-08
    value = tl.where(magnitude >= 0x7C00, special, tl.where(magnitude >= 0x400, normal, small))
    return tl.where((half & 0x8000) != 0, -value, value)


@triton.jit
def load_residual(e_ptr, at, inside, RESIDUAL: tl.constexpr):
    """e, in 32 bits: it is kept as f32, or as the 16 bits of a bf16 in an int16."""
    if RESIDUAL == "bf16":
        return from_bf16(tl.load(e_ptr + at, mask=inside, other=0).to(tl.int32))
    else:
        return tl.load(e_ptr + at, mask=inside, other=0.0)


@triton.jit
def store_residual(e_ptr, at, inside, e, RESIDUAL: tl.constexpr):
    if RESIDUAL == "bf16":
        tl.store(e_ptr + at, to_bf16(e).to(tl.int16), mask=inside)
    else:
        tl.store(e_ptr + at, e, mask=inside)
