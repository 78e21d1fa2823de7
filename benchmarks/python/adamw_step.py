"""A step of ``thinwire.AdamW`` against ``torch.optim.AdamW(fused=True)``: one process, one thread, 60M parameters of a GPT's shapes.

    python adamw_step.py [--layers 12] [--steps 15]

They take turns on models of their own, in one run. Gradients come from backward (of the scalar product with fixed values), into new
memory (``zero_grad()``, PyTorch's default) or into what is there (``set_to_none=False``). Timed are ``step()`` alone, and the whole of
``zero_grad()``, backward and ``step()``: what one saves in the other is no gain.
"""

import argparse
import statistics
import time

import torch

import thinwire


def shapes(layers, width, vocabulary):
    yield (vocabulary, width)
    for _ in range(layers):
        yield from [(width,), (3 * width, width), (3 * width,), (width, width), (width,)]
        yield from [(width,), (4 * width, width), (4 * width,), (width, 4 * width), (width,)]


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--layers", type=int, default=12)
    arguments.add_argument("--width", type=int, default=576)
    arguments.add_argument("--vocabulary", type=int, default=21_000)
    arguments.add_argument("--steps", type=int, default=15)
    options = arguments.parse_args()
    torch.set_num_threads(1)
    kinds = {
        "thinwire.AdamW": lambda params: thinwire.AdamW(params, lr=1e-4),
        "torch.optim.AdamW, fused": lambda params: torch.optim.AdamW(params, lr=1e-4, fused=True),
        "torch.optim.AdamW, foreach": lambda params: torch.optim.AdamW(params, lr=1e-4, foreach=True),
    }
    sizes = list(shapes(options.layers, options.width, options.vocabulary))
    runs = {}
    for kind, build in kinds.items():
        torch.manual_seed(0)
        params = [torch.nn.Parameter(torch.randn(size) * 0.02) for size in sizes]
        runs[kind] = (params, build(params), [torch.randn(size) * 1e-3 for size in sizes])
    count = sum(p.numel() for p in params)
    print(f"{count / 1e6:.1f}M parameters in {len(sizes)} tensors, one thread, PyTorch {torch.__version__}; ms, median (least to most)")

    for keep in (False, True):
        steps, wholes = {kind: [] for kind in runs}, {kind: [] for kind in runs}
        for turn in range(options.steps + 2):
            for kind, (params, optimizer, values) in runs.items():
                began = time.perf_counter()
                optimizer.zero_grad(set_to_none=not keep)
                sum((param * value).sum() for param, value in zip(params, values, strict=True)).backward()
                middle = time.perf_counter()
                optimizer.step()
                end = time.perf_counter()
                if turn >= 2:
                    steps[kind].append(1e3 * (end - middle))
                    wholes[kind].append(1e3 * (end - began))
        for what, taken in (("step()", steps), ("zero_grad(), backward and step()", wholes)):
            print(f"\n{what}, set_to_none={not keep}:")
            fused = taken["torch.optim.AdamW, fused"]
            for kind, times in taken.items():
                ratio = statistics.median(f / t for f, t in zip(fused, times, strict=True))
                print(f"  {kind:28s} {statistics.median(times):6.1f} ({min(times):.1f} to {max(times):.1f})   {ratio:.2f} of fused's speed")


if __name__ == "__main__":
    main()
