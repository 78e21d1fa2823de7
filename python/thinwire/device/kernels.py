"""The kernels that are launched: `encode` makes a payload, `apply` runs a pass on a vector or on a payload, and three reduce a vector.

All go through vectors in tiles of ROWS x 32 values (see `payload`), so that sums run in the engine's order and loads are four values
wide. What is averaged is never stored: `encode` computes it in each of its two passes over a block. `launch` calls these, and says what
the arguments are.
"""

# mypy: ignore-errors
import triton
import triton.language as tl

from .formulas import (
    DECAY,
    DECAYS_SINCE,
    JUMP,
    MOVES,
    RATE,
    RATES_SINCE,
    blend,
    blend_square,
    denominator,
    limited,
    of_group,
    synced_momentum,
    trusted,
)
from .payload import decoded, level, store_codes, store_scale, stride_of, values
from .rounding import from_bf16, from_f16, is_finite, load_residual, store_residual, to_bf16, to_f16

TILE = tl.constexpr(4096)  # values whose sum is taken by itself; `TILE` of the engine


@triton.jit
def places(count, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """The blocks of this program, the values of each, the place of each block's first 32, and whether all blocks are full."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    n = tl.minimum(tl.maximum(count - rows * BLOCK, 0), BLOCK).to(tl.int32)
    first = rows[:, None] * BLOCK + tl.arange(0, 32)[None, :]
    whole = (tl.program_id(0).to(tl.int64) + 1) * (ROWS * BLOCK) <= count
    return rows, n, first, whole


@triton.jit
def within_block(at, count, i, BLOCK: tl.constexpr):
    inside = at < count
    if BLOCK % 128 != 0:  # the sums run over whole groups
        inside = inside & (32 * i + tl.arange(0, 32)[None, :] < BLOCK)
    return inside


@triton.jit
def averaged(
    s, k, rows, i, at, inside, n, whole,
    SOURCE: tl.constexpr, FROM: tl.constexpr, FROM_WIDTH: tl.constexpr, FROM_ALIGNED: tl.constexpr,
    GROUPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A tile of the vector that is averaged. It is computed several times; the moments of `own_update` are there already."""
    in_ptr, m_ptr, u_ptr, bad_ptr, each, messages, divisor = s
    if SOURCE == "mean":
        total = tl.zeros(at.shape, tl.float32)
        message_ptr = in_ptr
        for w in range(messages):
            total += values(message_ptr, bad_ptr + (1 + w), rows, i, at, inside, n, whole, FROM, FROM_WIDTH, FROM_ALIGNED, BLOCK)
            message_ptr += each  # a product could pass 2^31
        return tl.div_rn(total, tl.zeros(at.shape, tl.float32) + divisor)
    elif SOURCE == "vector":
        return tl.load(in_ptr + at, mask=inside, other=0.0)
    elif SOURCE == "own_update":
        m = tl.load(m_ptr + at, mask=inside, other=0.0)
        v = tl.load(u_ptr + at, mask=inside, other=0.0)
        return tl.div_rn(of_group(k, at, RATE, GROUPS) * m, denominator(k, at, v, GROUPS))
    else:
        g = tl.load(in_ptr + at, mask=inside, other=0.0)
        m = tl.load(m_ptr + at, mask=inside, other=0.0)
        z = blend(k, at, m, g, GROUPS)
        if SOURCE == "blend":
            return z
        rate = of_group(k, at, RATE, GROUPS)
        if SOURCE == "progress":
            u = tl.load(u_ptr + at, mask=inside, other=0.0)
            return tl.where(rate > 0.0, u + rate * z, u)
        else:  # first_progress
            return tl.where(rate > 0.0, 0.0 + rate * z, 0.0)


@triton.jit
def move_moments(k, g_ptr, m_ptr, v_ptr, at, inside, GROUPS: tl.constexpr):
    """Efficient-Adam's m and v, before its update is averaged."""
    g = tl.load(g_ptr + at, mask=inside, other=0.0)
    m = tl.load(m_ptr + at, mask=inside, other=0.0)
    v = tl.load(v_ptr + at, mask=inside, other=0.0)
    tl.store(m_ptr + at, blend(k, at, m, g, GROUPS), mask=inside)
    tl.store(v_ptr + at, blend_square(k, at, v, g, GROUPS), mask=inside)


@triton.jit
def coded(
    s, k, e_ptr, rows, first, count, i, n, whole,
    SOURCE: tl.constexpr, FROM: tl.constexpr, FROM_WIDTH: tl.constexpr, FROM_ALIGNED: tl.constexpr,
    RESIDUAL: tl.constexpr, GROUPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """z = (the vector) + e, and which of its values there are."""
    at = first + 32 * i
    inside = within_block(at, count, i, BLOCK)
    z = averaged(s, k, rows, i, at, inside, n, whole, SOURCE, FROM, FROM_WIDTH, FROM_ALIGNED, GROUPS, BLOCK)
    if RESIDUAL != "none":
        z = z + load_residual(e_ptr, at, inside, RESIDUAL)
    return z, inside


@triton.jit
def add_group(lanes, a, b, c, d, group, n, whole_groups: tl.constexpr):
    """Four values of each lane. A whole group of 128 adds them in f32 as two pairs; a part of one adds them one by one in f64."""
    if whole_groups:
        return lanes + ((a + b) + (c + d)).to(tl.float64)
    else:
        in_pairs = (n >= 128 * (group + 1))[:, None]
        lanes += tl.where(in_pairs, (a + b) + (c + d), a).to(tl.float64)
        lanes += tl.where(in_pairs, 0.0, b).to(tl.float64)
        lanes += tl.where(in_pairs, 0.0, c).to(tl.float64)
        return lanes + tl.where(in_pairs, 0.0, d).to(tl.float64)


@triton.jit
def add_lanes(lanes, ROWS: tl.constexpr):
    """32 lanes, by halves. Every sum of floats is of two numbers, so no order is left to the compiler."""
    lanes = tl.sum(tl.reshape(lanes, (ROWS, 2, 16)), axis=1)
    lanes = tl.sum(tl.reshape(lanes, (ROWS, 2, 8)), axis=1)
    lanes = tl.sum(tl.reshape(lanes, (ROWS, 2, 4)), axis=1)
    lanes = tl.sum(tl.reshape(lanes, (ROWS, 2, 2)), axis=1)
    return tl.sum(lanes, axis=1)


@triton.jit
def magnitude(
    s, k, e_ptr, rows, first, count, i, n, whole,
    SOURCE: tl.constexpr, FROM: tl.constexpr, FROM_WIDTH: tl.constexpr, FROM_ALIGNED: tl.constexpr,
    RESIDUAL: tl.constexpr, GROUPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    z, inside = coded(s, k, e_ptr, rows, first, count, i, n, whole, SOURCE, FROM, FROM_WIDTH, FROM_ALIGNED, RESIDUAL, GROUPS, BLOCK)
    return tl.where(inside, tl.abs(z), 0.0)


@triton.jit
def sum_of_magnitudes(
    s, k, e_ptr, rows, first, count, n, pairs, whole,
    SOURCE: tl.constexpr, FROM: tl.constexpr, FROM_WIDTH: tl.constexpr, FROM_ALIGNED: tl.constexpr,
    RESIDUAL: tl.constexpr, GROUPS: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, WHOLE_GROUPS: tl.constexpr,
):  # fmt: skip
    """The sum of |z| of each block. Groups of 128 within the first `pairs` values are added in pairs."""
    lanes = tl.zeros((ROWS, 32), tl.float64)
    for group in range((BLOCK + 127) // 128):
        a = magnitude(s, k, e_ptr, rows, first, count, 4 * group, n, whole, SOURCE, FROM, FROM_WIDTH, FROM_ALIGNED, RESIDUAL, GROUPS, BLOCK)
        b = magnitude(
            s, k, e_ptr, rows, first, count, 4 * group + 1, n, whole, SOURCE, FROM, FROM_WIDTH, FROM_ALIGNED, RESIDUAL, GROUPS, BLOCK
        )
        c = magnitude(
            s, k, e_ptr, rows, first, count, 4 * group + 2, n, whole, SOURCE, FROM, FROM_WIDTH, FROM_ALIGNED, RESIDUAL, GROUPS, BLOCK
        )
        d = magnitude(
            s, k, e_ptr, rows, first, count, 4 * group + 3, n, whole, SOURCE, FROM, FROM_WIDTH, FROM_ALIGNED, RESIDUAL, GROUPS, BLOCK
        )
        lanes = add_group(lanes, a, b, c, d, group, pairs, WHOLE_GROUPS)
    return add_lanes(lanes, ROWS)


@triton.jit
def encode(
    in_ptr, m_ptr, u_ptr, k_ptr, ends_ptr, e_ptr, out_ptr, bad_ptr, start, count, each, messages, divisor,
    SOURCE: tl.constexpr, FROM: tl.constexpr, FROM_WIDTH: tl.constexpr, FROM_ALIGNED: tl.constexpr,
    TO: tl.constexpr, WIDTH: tl.constexpr, ALIGNED: tl.constexpr, RESIDUAL: tl.constexpr,
    GROUPS: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """z = (what is averaged) + e, coded; e keeps what the code lost. A block with a value that is not finite is noted and left alone."""
    rows, n, first, whole = places(count, BLOCK, ROWS)
    s = (in_ptr, m_ptr, u_ptr, bad_ptr, each, messages, divisor)
    k = (k_ptr, ends_ptr, start)
    if SOURCE == "own_update":
        for i in range((BLOCK + 31) // 32):
            at = first + 32 * i
            move_moments(k, in_ptr, m_ptr, u_ptr, at, within_block(at, count, i, BLOCK), GROUPS)
        tl.debug_barrier()  # what it wrote is read below
    if TO == "sign":
        if BLOCK % 128 == 0:
            total = sum_of_magnitudes(
                s, k, e_ptr, rows, first, count, n, n, whole,
                SOURCE, FROM, FROM_WIDTH, FROM_ALIGNED, RESIDUAL, GROUPS, BLOCK, ROWS, True,
            )  # fmt: skip
            again = (n > 0) & (n < BLOCK)
        else:
            total = sum_of_magnitudes(
                s, k, e_ptr, rows, first, count, n, n, whole,
                SOURCE, FROM, FROM_WIDTH, FROM_ALIGNED, RESIDUAL, GROUPS, BLOCK, ROWS, False,
            )  # fmt: skip
            again = n < 0
        # A block that is not full, in its own order; then one whose pairs overflowed, all of it in f64.
        for attempt in range(2):
            if attempt == 1:
                again = ~(total < float("inf"))
            if tl.max(again.to(tl.int32), axis=0) > 0:
                pairs = n * (1 - attempt)
                mended = sum_of_magnitudes(
                    s, k, e_ptr, rows, first, count, n, pairs, whole,
                    SOURCE, FROM, FROM_WIDTH, FROM_ALIGNED, RESIDUAL, GROUPS, BLOCK, ROWS, False,
                )  # fmt: skip
                total = tl.where(again, mended, total)
        scale = (total / tl.maximum(n, 1).to(tl.float64)).to(tl.float32)
    elif TO == "uniform":
        most = tl.zeros((ROWS, 32), tl.int32)
        for i in range((BLOCK + 31) // 32):
            z, inside = coded(
                s, k, e_ptr, rows, first, count, i, n, whole,
                SOURCE, FROM, FROM_WIDTH, FROM_ALIGNED, RESIDUAL, GROUPS, BLOCK,
            )  # fmt: skip
            most = tl.maximum(most, tl.where(inside, z.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 0))
        scale = tl.max(most, axis=1).to(tl.float32, bitcast=True)

    if TO == "sign" or TO == "uniform":
        fine = is_finite(scale)
        live = (n > 0) & fine
        tl.store(bad_ptr + rows * 0, 1, mask=(n > 0) & ~fine)
        begin = rows * stride_of(BLOCK, WIDTH)
        store_scale(out_ptr, begin, scale, live, ALIGNED)
        for i in range((BLOCK + 31) // 32):
            z, inside = coded(
                s, k, e_ptr, rows, first, count, i, n, whole,
                SOURCE, FROM, FROM_WIDTH, FROM_ALIGNED, RESIDUAL, GROUPS, BLOCK,
            )  # fmt: skip
            inside = inside & fine[:, None]
            if TO == "sign":
                code = (z >= 0.0).to(tl.int32)
                q = tl.where(z >= 0.0, scale[:, None], -scale[:, None])
            else:
                levels = tl.zeros_like(z) + ((1 << (WIDTH - 1)) - 1)
                some = (scale > 0.0)[:, None]
                part = tl.div_rn(z, tl.where(some, scale[:, None], 1.0) + tl.zeros_like(z)) * levels
                # To nearest, halves to even: there an f32 has no digit behind the point.
                code = tl.where(some, ((part + 12582912.0) - 12582912.0) + levels, levels).to(tl.int32)
                q = tl.where(some, level(code, scale[:, None], WIDTH), 0.0)
            if RESIDUAL != "none":
                store_residual(e_ptr, first + 32 * i, inside, z - q, RESIDUAL)
            store_codes(out_ptr, begin, i, code, inside, n, live, whole, WIDTH, ALIGNED)
    else:
        for i in range((BLOCK + 31) // 32):
            z, inside = coded(
                s, k, e_ptr, rows, first, count, i, n, whole,
                SOURCE, FROM, FROM_WIDTH, FROM_ALIGNED, RESIDUAL, GROUPS, BLOCK,
            )  # fmt: skip
            at = first + 32 * i
            fine = is_finite(z)
            tl.store(bad_ptr + at * 0, 1, mask=inside & ~fine)
            inside = inside & fine
            if TO == "f32":
                q = z
                tl.store(out_ptr.to(tl.pointer_type(tl.float32)) + at, z, mask=inside)
            else:
                half = to_bf16(z) if TO == "bf16" else to_f16(z)
                q = from_bf16(half) if TO == "bf16" else from_f16(half)
                tl.store(out_ptr.to(tl.pointer_type(tl.int16)) + at, half.to(tl.int16), mask=inside)
            if RESIDUAL != "none":
                store_residual(e_ptr, at, inside, z - q, RESIDUAL)


@triton.jit
def note_jump(jump_ptr, start, at, inside, update, limit):
    """The first value that moved too far, if one did."""
    far = inside & (tl.abs(update) > limit)
    if tl.max(tl.max(far.to(tl.int32), axis=1), axis=0) > 0:
        place = tl.where(far, start + at, 0x7FFFFFFFFFFFFFFF)
        tl.atomic_min(jump_ptr, tl.min(tl.min(place, axis=1), axis=0))


@triton.jit
def apply(
    in_ptr, r0_ptr, r1_ptr, w0_ptr, w1_ptr, w2_ptr, k_ptr, ends_ptr, e_ptr, bad_ptr, jump_ptr, start, count,
    PASS: tl.constexpr, FROM: tl.constexpr, WIDTH: tl.constexpr, ALIGNED: tl.constexpr, RESIDUAL: tl.constexpr,
    GROUPS: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """A pass on a vector, or on what a payload stands for. Vectors that are read and written are in the engine's order."""
    rows, n, first, whole = places(count, BLOCK, ROWS)
    k = (k_ptr, ends_ptr, start)
    for i in range((BLOCK + 31) // 32):
        at = first + 32 * i
        inside = within_block(at, count, i, BLOCK)
        if PASS != "anchor" and PASS != "fold_in":
            raw = values(in_ptr, bad_ptr, rows, i, at, inside, n, whole, FROM, WIDTH, ALIGNED, BLOCK)
            mean = decoded(raw, FROM)
        if PASS == "take_back":
            store_residual(e_ptr, at, inside, load_residual(e_ptr, at, inside, RESIDUAL) + raw, RESIDUAL)
        elif RESIDUAL != "none":  # a worker that compares its own state with the mean
            store_residual(e_ptr, at, inside, load_residual(e_ptr, at, inside, RESIDUAL) - mean, RESIDUAL)

        if PASS == "store":
            tl.store(w0_ptr + at, mean, mask=inside)
        elif PASS == "anchor":
            tl.store(w0_ptr + at, tl.load(r0_ptr + at, mask=inside, other=0.0), mask=inside)
        elif PASS == "adam" or PASS == "adam_after_coarse":
            m = tl.load(w0_ptr + at, mask=inside, other=0.0)
            v = tl.load(w1_ptr + at, mask=inside, other=0.0)
            x = tl.load(w2_ptr + at, mask=inside, other=0.0)
            v = blend_square(k, at, v, mean, GROUPS)
            p = denominator(k, at, v, GROUPS)
            if PASS == "adam_after_coarse":
                m = trusted(k, at, m, p, v, GROUPS)
            m = blend(k, at, m, mean, GROUPS)
            update = tl.div_rn(of_group(k, at, RATE, GROUPS) * m, p)
            tl.store(w0_ptr + at, m, mask=inside)
            tl.store(w1_ptr + at, v, mask=inside)
            tl.store(w2_ptr + at, x * of_group(k, at, DECAY, GROUPS) - update, mask=inside)
            note_jump(jump_ptr, start, at, inside, update, of_group(k, at, JUMP, GROUPS))
        elif PASS == "descend":
            v = tl.load(r0_ptr + at, mask=inside, other=0.0)
            x = tl.load(w1_ptr + at, mask=inside, other=0.0)
            rate = of_group(k, at, RATE, GROUPS)
            update = limited(k, at, tl.div_rn(rate * mean, denominator(k, at, v, GROUPS)), rate, v, GROUPS)
            tl.store(w0_ptr + at, mean, mask=inside)
            tl.store(w1_ptr + at, x * of_group(k, at, DECAY, GROUPS) - update, mask=inside)
        elif PASS == "local":
            rate = of_group(k, at, RATE, GROUPS)
            moving = inside & (tl.zeros_like(mean) + rate > 0.0)
            v = tl.load(r0_ptr + at, mask=moving, other=0.0)
            m = blend(k, at, tl.load(w0_ptr + at, mask=moving, other=0.0), mean, GROUPS)
            u = tl.load(w1_ptr + at, mask=moving, other=0.0)
            x = tl.load(w2_ptr + at, mask=moving, other=0.0)
            update = limited(k, at, tl.div_rn(rate * m, denominator(k, at, v, GROUPS)), rate, v, GROUPS)
            tl.store(w0_ptr + at, m, mask=moving)
            tl.store(w1_ptr + at, u + rate * m, mask=moving)
            tl.store(w2_ptr + at, x * of_group(k, at, DECAY, GROUPS) - update, mask=moving)
        elif PASS == "rebase" or PASS == "fold_in":
            if PASS == "fold_in":
                moving = inside
                mean = tl.load(w1_ptr + at, mask=moving, other=0.0)
            else:
                moving = inside & (tl.zeros_like(mean) + of_group(k, at, MOVES, GROUPS) > 0.0)
            v = tl.load(r0_ptr + at, mask=moving, other=0.0)
            a = tl.load(r1_ptr + at, mask=moving, other=0.0)
            m = tl.load(w0_ptr + at, mask=moving, other=0.0)
            p = denominator(k, at, v, GROUPS)
            update = limited(k, at, tl.div_rn(mean, p), of_group(k, at, RATES_SINCE, GROUPS), v, GROUPS)
            tl.store(w0_ptr + at, synced_momentum(k, at, mean, m, p, v, GROUPS), mask=moving)
            tl.store(w1_ptr + at, tl.zeros_like(mean), mask=moving)
            tl.store(w2_ptr + at, a * of_group(k, at, DECAYS_SINCE, GROUPS) - update, mask=moving)
        elif PASS == "first_rebase":
            moving = inside & (tl.zeros_like(mean) + of_group(k, at, MOVES, GROUPS) > 0.0)
            v = tl.load(r0_ptr + at, mask=moving, other=0.0)
            m = tl.load(w0_ptr + at, mask=moving, other=0.0)
            x = tl.load(w1_ptr + at, mask=moving, other=0.0)
            p = denominator(k, at, v, GROUPS)
            update = limited(k, at, tl.div_rn(mean, p), of_group(k, at, RATES_SINCE, GROUPS), v, GROUPS)
            tl.store(w0_ptr + at, synced_momentum(k, at, mean, m, p, v, GROUPS), mask=moving)
            tl.store(w1_ptr + at, x * of_group(k, at, DECAYS_SINCE, GROUPS) - update, mask=moving)
        elif PASS == "subtract":
            moving = inside & (tl.zeros_like(mean) + of_group(k, at, MOVES, GROUPS) > 0.0)
            x = tl.load(w0_ptr + at, mask=moving, other=0.0)
            tl.store(w0_ptr + at, x * of_group(k, at, DECAY, GROUPS) - mean, mask=moving)
            note_jump(jump_ptr, start, at, moving, mean, of_group(k, at, JUMP, GROUPS))


@triton.jit
def add_tiles(x_ptr, out_ptr, count, SQUARES: tl.constexpr, ROWS: tl.constexpr):
    """The sum of each tile of 4,096 values, or of their squares: 32 lanes in f64."""
    rows, n, first, whole = places(count, TILE, ROWS)
    lanes = tl.zeros((ROWS, 32), tl.float64)
    for i in range(TILE // 32):
        at = first + 32 * i
        x = tl.load(x_ptr + at, mask=at < count, other=0.0).to(tl.float64)
        lanes += x * x if SQUARES else x
    tl.store(out_ptr + rows, add_lanes(lanes, ROWS), mask=n > 0)


@triton.jit
def look_for_nan(x_ptr, bad_ptr, count, ROWS: tl.constexpr):
    """Notes whether a value is NaN, or larger than 2^62: as the engine's `all_within`."""
    at = tl.program_id(0).to(tl.int64) * (ROWS * 32) + tl.arange(0, ROWS * 32)
    x = tl.load(x_ptr + at, mask=at < count, other=0.0)
    tl.store(bad_ptr + at * 0, 1, mask=(at < count) & ~(tl.abs(x) <= 4611686018427387904.0))


@triton.jit
def digest(x_ptr, out_ptr, start, count, ROWS: tl.constexpr):
    """The sum of each value's bits times an odd weight of its place, mod 2^64; one for each program."""
    at = tl.program_id(0).to(tl.int64) * (ROWS * 32) + tl.arange(0, ROWS * 32)
    bits = tl.load(x_ptr.to(tl.pointer_type(tl.int32)) + at, mask=at < count, other=0).to(tl.int64) & 0xFFFFFFFF
    weight = (((start + at) * 0x3C6EF372) & 0xFFFFFFFF) | 1
    tl.store(out_ptr + tl.program_id(0), tl.sum(bits * weight, axis=0))
