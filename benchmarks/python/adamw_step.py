"""A step of ``thinwire.AdamW`` against ``torch.optim.AdamW(fused=True)``: one process, one thread, 60M parameters of a GPT's shapes.

    python adamw_step.py [--layers 12] [--steps 15]

Both take turns on models of their own, in one run. Three ways to have gradients: kept in place from step to step
(``zero_grad(set_to_none=False)``), new memory at each step (``set_to_none=True``, PyTorch's default), and the same with the time of
what follows from it: zeroing, and adding to what is there. The last is the fair one between the first two.
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
    print(f"{count / 1e6:.1f}M parameters in {len(sizes)} tensors, one thread, PyTorch {torch.__version__}; ms a step, median (least to most)")

    def in_place(params, optimizer, fresh):
        if params[0].grad is None:
            for param, grad in zip(params, fresh, strict=True):
                param.grad = grad.clone()
            optimizer.step()
        began = time.perf_counter()
        optimizer.step()
        return time.perf_counter() - began

    def anew(params, optimizer, fresh):
        for param, grad in zip(params, fresh, strict=True):
            param.grad = grad  # as backward does where there is none
        began = time.perf_counter()
        optimizer.step()
        taken = time.perf_counter() - began
        for param in params:
            param.grad = None
        return taken

    def whole(keep):
        def timed(params, optimizer, fresh):
            began = time.perf_counter()
            optimizer.zero_grad(set_to_none=not keep)
            for param, grad in zip(params, fresh, strict=True):
                if param.grad is None:
                    param.grad = grad
                else:
                    param.grad += grad
            optimizer.step()
            return time.perf_counter() - began

        return timed

    ways = {
        "gradients kept in place": in_place,
        "gradients anew": anew,
        "gradients anew, with zero_grad and accumulation": whole(False),
        "gradients kept, with zero_grad and accumulation": whole(True),
    }
    for way, timed in ways.items():
        taken = {kind: [] for kind in runs}
        for step in range(options.steps + 2):
            for kind, run in runs.items():
                seconds = timed(*run)
                if step >= 2:
                    taken[kind].append(1e3 * seconds)
        print(f"\n{way}:")
        fused = taken["torch.optim.AdamW, fused"]
        for kind, times in taken.items():
            ratio = statistics.median(f / t for f, t in zip(fused, times, strict=True))
            print(f"  {kind:28s} {statistics.median(times):6.1f} ({min(times):.1f} to {max(times):.1f})   {ratio:.2f} of fused's speed")
        for params, optimizer, _ in runs.values():
            optimizer.zero_grad()


if __name__ == "__main__":
    main()
