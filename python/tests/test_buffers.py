"""Buffers, and averages of the model (EMA, SWA): each rank's own while it trains, the same on all ranks where they count."""

import logging

import pytest
import ranks
import torch
from models import bits, tiny_gpt
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import thinwire


class Normed(nn.Module):
    """BatchNorm, a count, a mask, complex numbers, and a cache that no checkpoint has."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(3, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
        self.register_buffer("mask", torch.tensor([0.1, float("-inf")]))
        self.register_buffer("seen", torch.tensor(True))
        self.register_buffer("waves", torch.tensor([1 + 2j, 3 - 1j]))
        self.register_buffer("short", torch.ones(3, dtype=torch.bfloat16))
        self.register_buffer("cache", torch.zeros(1), persistent=False)

    def loss(self, seed):
        random = torch.Generator().manual_seed(seed)
        x = torch.randn(16, 3, generator=random) * (1 + seed % 3)
        return (self.layers(x).squeeze(1) - x.sum(1)).square().mean()


def steps(model, optimizer, rank, first, last):
    for step in range(first, last):
        optimizer.zero_grad()
        model.loss(100 * step + rank).backward()
        optimizer.step()


def buffers_of(model):
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


def same(one, two):
    return {name for name in one if torch.equal(one[name], two[name])}


def synced(rank, way, rule, whole):
    """Buffers before and at the end of a sync, or before, in and after a consensus; and whether training went on as if undisturbed."""
    model = Normed()
    words = {"buffers": model if whole else model.buffers(), "buffer_sync": rule}
    optimizer = thinwire.ZeroOneAdam(model.parameters(), lr=1e-2, sync_every=4, **words)
    steps(model, optimizer, rank, 0, 10)
    with torch.no_grad():
        model.seen.fill_(rank == 0)
        model.cache.fill_(rank)
        model.short.mul_(rank + 1)
    before = buffers_of(model)
    if way == "sync":
        optimizer.sync()
        return before, buffers_of(model)
    with optimizer.consensus():
        inside = buffers_of(model)
        with optimizer.consensus():
            assert same(inside, buffers_of(model)) == set(inside)
        model.loss(9)  # in training mode, by mistake: even that changes nothing
    assert same(before, buffers_of(model)) == set(before)
    steps(model, optimizer, rank, 10, 15)
    other = Normed()
    undisturbed = thinwire.ZeroOneAdam(other.parameters(), lr=1e-2, sync_every=4, buffers=other)
    steps(other, undisturbed, rank, 0, 15)
    assert torch.equal(bits(model), bits(other))
    return before, inside


STATISTICS = {"layers.1.running_mean", "layers.1.running_var"}


@pytest.mark.parametrize("way", ["sync", "consensus"])
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("rule", ["mean", "rank0"])
def test_buffers_are_equal_by_the_rule(way, rule, whole):
    (mine, ours), (theirs, also_ours) = ranks.run(2, synced, way, rule, whole)
    assert not STATISTICS & same(mine, theirs), "the ranks should have different data"
    cache = set() if not whole else {"cache"}  # of a module the persistent ones, of a list those in it
    assert same(ours, also_ours) == set(ours) - cache
    if rule == "rank0":
        assert same(ours, mine) == set(ours)
    else:
        for name in STATISTICS | {"short"}:
            mean = (mine[name].double() + theirs[name].double()) / 2
            assert torch.equal(ours[name], mean.to(ours[name].dtype)), name
        assert {"mask", "waves", "seen", "layers.1.num_batches_tracked"} <= same(ours, mine)


def three_equal(rank):
    model = Normed()
    optimizer = thinwire.AdamW(model.parameters(), buffers=model)
    before = buffers_of(model)
    optimizer.sync()
    return same(before, buffers_of(model)) == set(before)


def test_equal_buffers_stay_as_they_are():
    """The mean of three equal numbers is that number."""
    assert ranks.run(3, three_equal) == [True] * 3


def broadcast(rank):
    model = Normed()
    with torch.no_grad():
        model.layers[1].running_mean.fill_(rank)
        model.mask[0] = rank
        model.layers[0].weight.fill_(rank)
    thinwire.AdamW(model.parameters(), init="broadcast", buffers=model)
    return buffers_of(model), bits(model)


def test_a_broadcast_has_the_buffers_too():
    (ours, params), (also_ours, also_params) = ranks.run(2, broadcast)
    assert same(ours, also_ours) == set(ours) and torch.equal(params, also_params)
    assert not ours["layers.1.running_mean"].any()


def other_buffers(rank):
    model = Normed()
    if rank == 1:
        model.register_buffer("more", torch.zeros(1))
    thinwire.AdamW(model.parameters(), buffers=model)


def test_buffers_that_differ_between_ranks_are_refused():
    for error in ranks.run(2, other_buffers, allowed=[ValueError]):
        assert "buffers: worker 0 and worker 1 have different names" in str(error)


def told(rank, words, build):
    lines, handler = [], logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("thinwire").addHandler(handler)
    try:
        model = build()
        optimizer = thinwire.AdamW(model.parameters(), **({"buffers": model} if words else {}))
        steps(model, optimizer, rank, 0, 2)
        optimizer.sync()
    finally:
        logging.getLogger("thinwire").removeHandler(handler)
    return lines


def test_running_statistics_are_told_of_once():
    for lines in ranks.run(2, told, False, Normed):
        assert lines == [
            "layers.1 (BatchNorm1d) has running statistics, which stay each rank's own: give the optimizer buffers=model, and sync() "
            "and consensus() make them equal on all ranks"
        ]
    assert ranks.run(2, told, True, Normed) == [[], []]
    assert ranks.run(2, told, False, tiny_gpt) == [[], []]
    assert ranks.run(1, told, False, Normed) == [[]]


def test_what_is_refused():
    model = Normed()
    with pytest.raises(ValueError, match="invalid buffer_sync = 'max': expected one of 'mean', 'rank0'"):
        thinwire.AdamW(model.parameters(), buffers=model, buffer_sync="max")
    with pytest.raises(TypeError, match="expected a module, or an iterable of tensors"):
        thinwire.AdamW(model.parameters(), buffers=model.named_buffers())


# ---- averages of the model -------------------------------------------------------------------------


def averaged(rank, kind, every):
    """EMA or SWA, as the README has it; beside it the same by hand, of what was seen in each consensus."""
    model = Normed()
    optimizer = thinwire.ZeroOneAdam(model.parameters(), lr=1e-2, sync_every=4, variance_steps=[0, 1, 2], buffers=model)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9) if kind == "ema" else None)
    by_hand, apart = None, 0
    for step in range(12):
        steps(model, optimizer, rank, step, step + 1)
        if (step + 1) % every == 0:
            own = bits(model)
            with optimizer.consensus():
                average.update_parameters(model)
                seen = bits(model)
            apart += not torch.equal(own, seen)
            count = (step + 1) // every
            part = 0.1 if kind == "ema" else 1 / count
            by_hand = seen if by_hand is None else by_hand + part * (seen - by_hand)
    assert torch.allclose(bits(average.module), by_hand, rtol=1e-5, atol=1e-6)
    return bits(average.module), buffers_of(average.module), apart


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("kind", ["ema", "swa"])
def test_averages_are_equal_on_all_ranks(kind, every):
    (one, buffers, apart), (two, others, _) = ranks.run(2, averaged, kind, every)
    assert apart > 0, "some should be taken between two syncs"
    assert torch.equal(one, two)
    assert same(buffers, others) == set(buffers)
