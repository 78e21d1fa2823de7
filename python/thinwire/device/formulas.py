"""The element-wise formulas of the optimizers, in the letters of the papers: the twins of `kernel/update.rs`, operation by operation.

Division and square root are the correctly rounded ones, and kernels are compiled without fused multiply-add.
"""

# mypy: ignore-errors
import triton
import triton.language as tl

# The places of a parameter group's scalars, as `Scalars` in kernel/update.rs lists them.
SCALARS = (
    "beta1", "beta1_rest", "beta2", "beta2_rest", "rate", "decay", "correction", "eps", "shrink", "limit", "jump", "moves",
    "rates_since", "decays_since",
)  # fmt: skip
PER_GROUP = tl.constexpr(len(SCALARS))
BETA1, BETA1_REST, BETA2, BETA2_REST, RATE, DECAY, CORRECTION, EPS, SHRINK, BOUND, JUMP, MOVES, RATES_SINCE, DECAYS_SINCE = (
    tl.constexpr(place) for place in range(len(SCALARS))
)

# Those that all parameter groups of a step have in common.
SHARED = (*SCALARS[:4], *SCALARS[6:10])

LIMIT = tl.constexpr(1.0)
NOISE = tl.constexpr(100.0)
LARGEST = tl.constexpr(7.3)


@triton.jit
def of_group(k, at, WHICH: tl.constexpr, GROUPS: tl.constexpr):
    """A scalar of each value's parameter group. `k` is the scalars of all groups, where the groups end, and where the values start.

    Most are the same for all groups (`SHARED`), which `launch.Groups` has seen to."""
    k_ptr, ends_ptr, start = k
    value = tl.load(k_ptr + WHICH)
    if GROUPS > 1 and (WHICH == RATE or WHICH == DECAY or WHICH >= JUMP):
        for group in tl.static_range(1, GROUPS):
            after = start + at >= tl.load(ends_ptr + (group - 1))
            value = tl.where(after, tl.load(k_ptr + (group * PER_GROUP + WHICH)), value)
    return value


@triton.jit
def denominator(k, at, v, GROUPS: tl.constexpr):
    """P = sqrt(v / (1 - beta2^j)) + eps."""
    return tl.sqrt_rn(v * of_group(k, at, CORRECTION, GROUPS)) + of_group(k, at, EPS, GROUPS)


@triton.jit
def blend(k, at, m, g, GROUPS: tl.constexpr):
    g = of_group(k, at, SHRINK, GROUPS) * g
    return of_group(k, at, BETA1, GROUPS) * m + of_group(k, at, BETA1_REST, GROUPS) * g


@triton.jit
def blend_square(k, at, v, g, GROUPS: tl.constexpr):
    g = of_group(k, at, SHRINK, GROUPS) * g
    return of_group(k, at, BETA2, GROUPS) * v + of_group(k, at, BETA2_REST, GROUPS) * g * g


@triton.jit
def within(value, most):
    return tl.where(value > most, most, tl.where(value < -most, -most, value))


@triton.jit
def fading(value, most):
    """How much a value counts for: 1 up to NOISE times `most`, and less the farther it is beyond."""
    noise = NOISE * most
    return tl.where(tl.abs(value) > noise, tl.div_rn(noise, tl.abs(value)), 1.0)


@triton.jit
def limited(k, at, update, rate, v, GROUPS: tl.constexpr):
    """What an update may move x by where v is stale; `rate` is the sum of the rates that led to it."""
    most = tl.where(v > 0.0, of_group(k, at, BOUND, GROUPS) * rate, LIMIT * rate)
    return tl.where(v > 0.0, fading(update, most), 1.0) * within(update, most)


@triton.jit
def trusted(k, at, m, p, v, GROUPS: tl.constexpr):
    """What to take of a momentum that a coarse mean left, before it counts in exact steps."""
    most = tl.where(v > 0.0, of_group(k, at, BOUND, GROUPS) * p, LIMIT * p)
    return fading(m, most) * within(m, most)


@triton.jit
def synced_momentum(k, at, mean, m, p, v, GROUPS: tl.constexpr):
    """m after a sync of 0/1 Adam: what was agreed on over the rates since the last one, as far as it can be a momentum."""
    rates = of_group(k, at, RATES_SINCE, GROUPS) + tl.zeros_like(mean)
    bound = of_group(k, at, BOUND, GROUPS)
    synced = tl.div_rn(mean, rates)
    possible = fading(synced, bound * p) * within(synced, LARGEST * bound * p)
    return tl.where(rates <= 0.0, m, tl.where(v > 0.0, possible, synced))
