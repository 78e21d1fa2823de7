"""Whole runs on Triton's interpreter beside the same runs on the host: ``python device_runs.py run|resume NAME...`` prints what differs.

A program of its own, because the interpreter must be chosen before Triton is imported. Workers are threads. The interpreter needs about
a tenth of a second for a kernel, so vectors are short, and each case stands for many: optimizer, codec, residual, block, number of
workers, groups, clipping and bad gradients are paired, not multiplied. ``run --deep`` multiplies some of them.
"""

import os
import sys
import tempfile

os.environ["TRITON_INTERPRET"] = "1"

import numpy  # noqa: E402
import torch  # noqa: E402
from engine import gradient, start, together  # noqa: E402

import thinwire  # noqa: E402
from thinwire.device.machine import Machine  # noqa: E402

LENGTH = 107  # no multiple of a block, nor of 32
STEPS = 8
GROUPS = [{"length": 40, "weight_decay": 0.0}, {"length": LENGTH - 40, "weight_decay": 0.1}]
ZERO_ONE = {"freeze": 4, "sync_every": 3, "variance_gap": 2}  # exact, coarse and skipped steps, and one after a coarse one

#: name: how many workers, the optimizer, and its options.
CASES = {
    "adam": (2, "adam", {"groups": GROUPS}),
    "adam_clipped_alone": (1, "adam", {"clip": 0.5}),
    "adam_clipped": (2, "adam", {"clip": 0.5, "exact_codec": "bf16", "topology": "central"}),
    "adam_skips": (3, "adam", {"non_finite": "skip"}),
    "one_bit": (2, "one-bit-adam", {"warmup": 3, "block": 32}),
    "one_bit_halves": (3, "one-bit-adam", {"warmup": 2, "block": 64, "residual": "bf16", "clip": 0.5, "groups": GROUPS}),
    "one_bit_skips": (2, "one-bit-adam", {"warmup": 3, "block": 32, "non_finite": "skip", "exact_codec": "bf16"}),
    "one_bit_levels": (2, "one-bit-adam", {"warmup": 3, "block": 32, "codec_down": "uniform3", "topology": "central"}),
    "zero_one": (2, "zero-one-adam", {**ZERO_ONE, "block": 32}),
    "zero_one_groups": (2, "zero-one-adam", {**ZERO_ONE, "block": 32, "groups": GROUPS, "residual": "bf16", "topology": "central"}),
    "zero_one_alone": (1, "zero-one-adam", {**ZERO_ONE, "block": 128}),
    "zero_one_skips": (3, "zero-one-adam", {**ZERO_ONE, "block": 64, "non_finite": "skip", "codec": "bf16"}),
    "efficient": (2, "efficient-adam", {"block": 32}),
    "efficient_skips": (2, "efficient-adam", {"block": 32, "codec": "sign", "non_finite": "skip", "groups": GROUPS}),
    "efficient_casts": (3, "efficient-adam", {"codec_up": "f32", "codec_down": "f16", "block": 32}),
}

DEEP = {
    f"{name} {codec} {residual} {topology} {workers}": (
        workers,
        name,
        {**options, "codec": codec, "residual": residual, "topology": topology, "block": 32, "groups": GROUPS},
    )
    for name, options in [("one-bit-adam", {"warmup": 3}), ("zero-one-adam", ZERO_ONE), ("efficient-adam", {})]
    for codec in ("sign", "uniform2", "uniform4", "uniform8", "bf16", "f16", "f32")
    for residual in ("f32", "bf16")
    for topology in ("sharded", "central")
    for workers in (1, 2, 3)
}


class Replica:
    """A worker whose parameters are on the host, or on a device."""

    def __init__(self, end, name, options, on_device, resume=None):
        self.params = start(LENGTH)
        self.machine = Machine(LENGTH, torch.device("cpu"), "the interpreter") if on_device else None
        count = self.params if self.machine is None and resume is None else LENGTH
        if self.machine is not None:
            self.machine.params.copy_(torch.from_numpy(self.params))
        self.worker = thinwire.Worker(name, parameters=count, group=end, device=self.machine, **options)
        if resume is not None:
            self.worker.resume(resume, self.lent())
            self.fetch()
        elif self.machine is not None:
            self.worker._meet_on_device()

    def lent(self):
        return self.params if self.machine is None else None

    def fetch(self):
        if self.machine is not None:
            self.params = self.machine.params.numpy().copy()

    def step(self):
        step = self.worker.steps
        grad = gradient(self.params, self.worker.rank, step)
        if self.worker.config["non_finite"] == "skip" and step in (2, 5) and self.worker.rank == 0:
            grad[7] = numpy.nan
        rates = [0.05, 0.03] if "groups" in self.worker.config else None
        if self.machine is None:
            self.worker.step(self.params, grad, 0.05, rates)
        else:
            self.machine.gradient.copy_(torch.from_numpy(grad))
            self.worker._step_on_device(0.05, rates)
            self.fetch()

    def sync(self):
        self.worker.sync(self.lent())
        self.fetch()

    def everything(self):
        """Parameters and state, as bits."""
        state = {name: numpy.asarray(value) for name, value in self.worker.state_dict()["values"].items()}
        found = {"params": self.params.view(numpy.uint32).copy()}
        for name, value in state.items():
            found[name] = value.view(f"u{value.dtype.itemsize}").copy()
        return found


def trace(end, name, options, on_device, resume=None, steps=STEPS, saves=()):
    """Everything there is after each step and the last sync; checkpoints after some of the steps."""
    replica = Replica(end, name, options, on_device(end) if callable(on_device) else on_device, resume)
    seen = []
    while replica.worker.steps < steps:
        replica.step()
        seen.append(replica.everything())
        for step, folder in saves:
            if step == replica.worker.steps:
                replica.worker.save(folder, replica.lent())
    replica.sync()
    seen.append(replica.everything())
    return seen, replica.worker.traffic()


def on(workers, *arguments, **keywords):
    """The traces of all workers of a run."""
    return together(workers, lambda end: trace(end, *arguments, **keywords))


def differences(expected, found):
    """What differs between two runs, worker by worker."""
    problems = []
    for rank, ((host, sent), (device, too)) in enumerate(zip(expected, found, strict=True)):
        for step, (one, other) in enumerate(zip(host, device, strict=True)):
            wrong = [name for name in one if not numpy.array_equal(one[name], other[name])]
            if wrong:
                problems.append(f"worker {rank}, step {step}: {', '.join(wrong)}")
                break
        if any(sent[key] != too[key] for key in ("bytes_sent", "rounds", "left_out")):
            problems.append(f"worker {rank}: it sent something else")
    return problems


def run(name):
    """The same run on hosts, on devices, and on both together."""
    workers, optimizer, options = CASES[name]
    on_hosts = on(workers, optimizer, options, False)
    problems = differences(on_hosts, on(workers, optimizer, options, True))
    if workers > 1:
        mixed = on(workers, optimizer, options, first_on_device())
        problems += [f"mixed: {problem}" for problem in differences(on_hosts, mixed)]
    return problems


def first_on_device():
    """Places for the workers of one run: the first that asks is on a device, the others are on hosts."""
    places = iter([True, *[False] * 7])
    return lambda end: next(places)


def resume(name):
    """A run that is saved after each step goes on the same from every one of them, also where the other kind of machine saved it, and
    with another number of workers."""
    workers, optimizer, options = CASES[name]
    problems = []
    with tempfile.TemporaryDirectory() as root:
        folders = [(step, os.path.join(root, f"{step}")) for step in range(1, STEPS)]
        whole = on(workers, optimizer, options, True, saves=folders)
        problems += differences(on(workers, optimizer, options, False), whole)
        for (step, folder), on_device in zip(folders, [True, False] * STEPS, strict=False):
            rest = on(workers, optimizer, options, on_device, folder)
            expected = [(seen[step:], traffic) for seen, traffic in whole]
            problems += [f"from step {step}: {problem}" for problem in differences(expected, with_traffic_of(rest, whole))]
        step, folder = folders[-3]
        fewer = [on(workers - 1, optimizer, options, on_device, folder) for on_device in (False, True)]
        problems += [f"{workers - 1} workers from step {step}: {problem}" for problem in differences(*fewer)]
    return problems


def with_traffic_of(runs, others):
    """A resumed worker counts what it sent itself, so that is not compared."""
    return [(seen, traffic) for (seen, _), (_, traffic) in zip(runs, others, strict=True)]


if __name__ == "__main__":
    numpy.seterr(all="ignore")  # the interpreter computes what a `where` then leaves out
    kind, *names = sys.argv[1:]
    if kind == "list":
        print(*CASES)
    elif names == ["--deep"]:
        CASES, names = DEEP, list(DEEP)
    for name in names:
        for problem in {"run": run, "resume": resume}[kind](name):
            print(f"{name}: {problem}", flush=True)
    if names:
        print("done")
