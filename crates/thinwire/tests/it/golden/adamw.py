"""Golden numbers for Adam: what torch.optim.AdamW does in 100 steps, in f32 on the CPU.

Run it:    pip install torch
           python crates/thinwire/tests/golden/adamw.py
It makes:  adamw.json, beside this file; the test that reads it needs no Python.

Each case is one setting of AdamW on a vector of 37 values. Gradients do not depend on the
parameters: they come from a 32-bit LCG (the one of Numerical Recipes), so the reader makes them
again, bit for bit, instead of loading them:

    state = seed of the case
    draw():  state = (1664525 * state + 1013904223) mod 2^32;  return ((state >> 21) - 1024) / 1024

    first  start[i] = draw() * 8^-(i mod 3)               for i in 0..37
    then, for each of the steps 1..100 in turn,
           grad[i]  = draw() * 8^-(i mod 7)               for i in 0..37
           grad[i]  = 0 where i is in "zero_gradient"     (drawn all the same)

A draw is a whole number in -1024..1023 over 1024, and the factors are powers of two, so every
start value and every gradient is exact in f32. The gradients reach from 1 down to 4e-9, hence eps
counts. "start" and "first_gradient" stand in the file so that a reader can check its generator.

The file:
    made_by, torch, values, steps, snapshots
    cases[]: name, seed, betas [b1, b2], eps, zero_gradient [i...],
             groups[]: begin, end (half open), weight_decay, lr [one for each step, f64],
             start [37], first_gradient [37],
             after { "1" | "2" | "10" | "50" | "100": the 37 parameters after that many steps }
Parameters have 9 significant digits, which is enough to name one f32.
"""

import json
import math
import re
from pathlib import Path

import torch

VALUES, STEPS, SNAPSHOTS = 37, 100, (1, 2, 10, 50, 100)


class Lcg:
    """The generator above."""

    def __init__(self, seed):
        self.state = seed

    def draw(self):
        self.state = (1664525 * self.state + 1013904223) % 2**32
        return ((self.state >> 21) - 1024) / 1024

    def vector(self, period):
        return [self.draw() * 8.0 ** -(i % period) for i in range(VALUES)]


def constant(lr):
    return [lr] * STEPS


def warmup_then_cosine(peak, warmup=10):
    """Straight up to `peak` over the first `warmup` steps, then half a cosine down to 0 after the last."""

    def at(t):
        if t < warmup:
            return peak * (t + 1) / warmup
        return peak * 0.5 * (1 + math.cos(math.pi * (t - warmup) / (STEPS - warmup)))

    return [at(t) for t in range(STEPS)]


def group(begin, end, lr, weight_decay):
    return {"begin": begin, "end": end, "weight_decay": weight_decay, "lr": lr}


def case(name, seed, groups, betas=(0.9, 0.999), eps=1e-8, zero_gradient=()):
    return {
        "name": name,
        "seed": seed,
        "betas": list(betas),
        "eps": eps,
        "zero_gradient": list(zero_gradient),
        "groups": groups,
    }


def whole(lr=constant(1e-3), weight_decay=1e-2):
    """One group for the whole vector; the defaults are those of torch.optim.AdamW."""
    return [group(0, VALUES, lr, weight_decay)]


CASES = [
    case("default", 1, whole()),
    case("warmup_cosine", 2, whole(lr=warmup_then_cosine(3e-3))),
    case("weight_decay", 3, whole(weight_decay=0.1)),
    case("betas_eps", 4, whole(), betas=(0.8, 0.95), eps=1e-6),
    case("two_groups", 5, [group(0, 20, constant(1e-3), 0.1), group(20, VALUES, constant(3e-4), 0.0)]),
    case("zero_gradient", 6, whole(), zero_gradient=range(3, VALUES, 5)),
]


def adamw(c, tensors):
    """torch.optim.AdamW with one tensor a group."""
    groups = [
        {"params": [x], "lr": g["lr"][0], "weight_decay": g["weight_decay"]}
        for x, g in zip(tensors, c["groups"])
    ]
    return torch.optim.AdamW(groups, betas=tuple(c["betas"]), eps=c["eps"], foreach=False, fused=False)


def gradient(c, lcg):
    g = lcg.vector(7)
    for i in c["zero_gradient"]:
        g[i] = 0.0
    return g


def short(values):
    return [float(f"{x:.9g}") for x in values]


def run(c):
    lcg = Lcg(c["seed"])
    start, first_gradient, after = lcg.vector(3), None, {}
    spans = [slice(g["begin"], g["end"]) for g in c["groups"]]
    tensors = [torch.tensor(start[s], dtype=torch.float32, requires_grad=True) for s in spans]
    optimizer = adamw(c, tensors)
    for step in range(1, STEPS + 1):
        g = gradient(c, lcg)
        first_gradient = first_gradient or g
        for x, span, settings, ours in zip(tensors, spans, optimizer.param_groups, c["groups"]):
            x.grad = torch.tensor(g[span], dtype=torch.float32)
            settings["lr"] = ours["lr"][step - 1]
        optimizer.step()
        if step in SNAPSHOTS:
            after[str(step)] = short(torch.cat(tensors).tolist())
    return {**c, "start": short(start), "first_gradient": short(first_gradient), "after": after}


def one_line_a_list(text):
    """Puts every list of numbers on one line, so that a difference names a vector."""
    return re.sub(r"\[([^\[\]{}\"]*)\]", lambda m: "[" + ", ".join(m[1].replace(",", " ").split()) + "]", text)


def main():
    golden = {
        "made_by": "adamw.py",
        "torch": torch.__version__.split("+")[0],
        "values": VALUES,
        "steps": STEPS,
        "snapshots": list(SNAPSHOTS),
        "cases": [run(c) for c in CASES],
    }
    path = Path(__file__).with_suffix(".json")
    path.write_text(one_line_a_list(json.dumps(golden, indent=1)) + "\n")


if __name__ == "__main__":
    main()
