"""Runs on threads: what every other way to run is compared with."""

from concurrent.futures import ThreadPoolExecutor

import numpy

import thinwire


def start(d: int) -> numpy.ndarray:
    return numpy.random.default_rng(0).standard_normal(d).astype(numpy.float32)


def gradient(params: numpy.ndarray, rank: int, step: int) -> numpy.ndarray:
    """Depends on the parameters, the worker and the step, and on nothing else."""
    noise = numpy.random.default_rng((1, rank, step)).standard_normal(len(params))
    return (params + 0.3 * noise).astype(numpy.float32)


def together(n: int, work, **keywords):
    """What `work` returns for each end of a group of `n` threads; the first exception is passed on."""
    with ThreadPoolExecutor(n) as pool:
        ends = [pool.submit(work, end) for end in thinwire.local_group(n, **keywords)]
        return [end.result() for end in ends]


def train(end, name, d=1000, steps=20, lr=0.05, **config):
    """Parameters after some steps, and the worker."""
    params = start(d)
    worker = thinwire.Worker(name, parameters=d, group=end, **config)
    for step in range(steps):
        worker.step(params, gradient(params, worker.rank, step), lr)
    return params, worker
