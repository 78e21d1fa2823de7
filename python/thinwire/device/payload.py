"""The bytes of a payload: scales and codes of blocks, written and read (docs/wire-format.md).

A program works on ROWS blocks, 32 values of each at a time: a tile of ROWS x 32. `rows` are the blocks, `i` counts the tiles of a
block, `n` are the values of each block, which is BLOCK but for the last. A block takes STRIDE bytes: a scale of four, then WIDTH bits a
value. Where blocks begin at multiples of four bytes (ALIGNED), 32-bit words are stored and loaded; else single bytes. A payload itself
begins at a multiple of 16 bytes.
"""

# mypy: ignore-errors
import triton
import triton.language as tl

from .rounding import from_bf16, from_f16, is_finite


@triton.jit
def stride_of(BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    return 4 + (BLOCK * WIDTH + 7) // 8


@triton.jit
def store_scale(out_ptr, start, s, mask, ALIGNED: tl.constexpr):
    if ALIGNED:
        tl.store((out_ptr + start).to(tl.pointer_type(tl.float32)), s, mask=mask)
    else:
        bits = s.to(tl.int32, bitcast=True)
        for part in tl.static_range(4):
            tl.store(out_ptr + start + part, ((bits >> (8 * part)) & 255).to(tl.uint8), mask=mask)


@triton.jit
def load_scale(in_ptr, start, mask, ALIGNED: tl.constexpr):
    if ALIGNED:
        return tl.load((in_ptr + start).to(tl.pointer_type(tl.float32)), mask=mask, other=0.0)
    else:
        bits = tl.load(in_ptr + start, mask=mask, other=0).to(tl.int32)
        for part in tl.static_range(1, 4):
            bits |= tl.load(in_ptr + start + part, mask=mask, other=0).to(tl.int32) << (8 * part)
        return bits.to(tl.float32, bitcast=True)


@triton.jit
def store_codes(out_ptr, start, i, code, mask, n, live, whole, WIDTH: tl.constexpr, ALIGNED: tl.constexpr):
    """32 codes of WIDTH bits each are WIDTH words: each the sum of its codes, which share no bit."""
    lane = tl.arange(0, 32)[None, :]
    masked = tl.where(mask, code, 0)
    for w in tl.static_range(WIDTH):
        shift = lane * WIDTH - 32 * w
        left = masked << tl.minimum(tl.maximum(shift, 0), 31)
        right = masked >> tl.minimum(tl.maximum(-shift, 0), 31)
        word = tl.sum(tl.where(shift >= 32, 0, tl.where(shift >= 0, left, right)), axis=1)
        first = 4 * (i * WIDTH + w)  # byte among the block's codes
        fits = live & (n >= 32 * (i + 1))
        place = out_ptr + start + (4 + first)
        if ALIGNED:
            tl.store(place.to(tl.pointer_type(tl.int32)), word, mask=fits)
        if not (ALIGNED and whole):
            by_bytes = live
            if ALIGNED:
                by_bytes = live & (n < 32 * (i + 1))
            for part in tl.static_range(4):
                there = by_bytes & ((first + part) * 8 < n * WIDTH)
                tl.store(place + part, ((word >> (8 * part)) & 255).to(tl.uint8), mask=there)


@triton.jit
def load_codes(in_ptr, start, i, inside, n, whole, WIDTH: tl.constexpr, ALIGNED: tl.constexpr):
    lane = tl.arange(0, 32)[None, :]
    bit = (32 * i + lane) * WIDTH
    place = in_ptr + start[:, None] + 4 + (bit >> 3)
    if WIDTH == 1 and ALIGNED:
        fits = n >= 32 * (i + 1)
        word = tl.load((in_ptr + start + (4 + 4 * i)).to(tl.pointer_type(tl.int32)), mask=fits, other=0)
        code = (word[:, None] >> lane) & 1
        if not whole:
            byte = tl.load(place, mask=inside & ~fits[:, None], other=0).to(tl.int32)
            code = tl.where(fits[:, None], code, (byte >> (bit & 7)) & 1)
        return code
    else:
        bits = tl.load(place, mask=inside, other=0).to(tl.int32)
        if 8 % WIDTH != 0:
            crosses = inside & ((bit & 7) + WIDTH > 8)
            bits |= tl.load(place + 1, mask=crosses, other=0).to(tl.int32) << 8
        return (bits >> (bit & 7)) & ((1 << WIDTH) - 1)


@triton.jit
def level(code, s, WIDTH: tl.constexpr):
    """uniform: (code - L) / L * s, in this order."""
    levels = (code * 0 + ((1 << (WIDTH - 1)) - 1)).to(tl.float32)
    return tl.div_rn(code.to(tl.float32) - levels, levels) * s


@triton.jit
def values(
    in_ptr, bad_ptr, rows, i, at, inside, n, whole,
    CODEC: tl.constexpr, WIDTH: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """What a tile of a payload stands for. A value that cannot be is noted at `bad_ptr`."""
    if CODEC == "vector":
        return tl.load(in_ptr + at, mask=inside, other=0.0)
    elif CODEC == "sign" or CODEC == "uniform":
        start = rows * stride_of(BLOCK, WIDTH)
        live = n > 0
        s = load_scale(in_ptr, start, live, ALIGNED)
        bits = s.to(tl.int32, bitcast=True)
        tl.store(bad_ptr + rows * 0, 1, mask=live & ((bits < 0) | (bits >= 0x7F800000)))
        code = load_codes(in_ptr, start, i, inside, n, whole, WIDTH, ALIGNED)
        if CODEC == "sign":
            return tl.where(code == 1, s[:, None], -s[:, None])
        else:
            tl.store(bad_ptr + at * 0, 1, mask=inside & (code > (1 << WIDTH) - 2))
            return level(code, s[:, None], WIDTH)
    else:
        if CODEC == "f32":
            value = tl.load(in_ptr.to(tl.pointer_type(tl.float32)) + at, mask=inside, other=0.0)
        else:
            half = tl.load(in_ptr.to(tl.pointer_type(tl.int16)) + at, mask=inside, other=0).to(tl.int32)
            value = from_bf16(half) if CODEC == "bf16" else from_f16(half)
        tl.store(bad_ptr + at * 0, 1, mask=inside & ~is_finite(value))
        return value


@triton.jit
def decoded(value, CODEC: tl.constexpr):
    """A mean by itself, not added to anything: a zero of a grid has no sign."""
    if CODEC == "sign" or CODEC == "uniform":
        return tl.where(value == 0.0, 0.0, value)
    else:
        return value
