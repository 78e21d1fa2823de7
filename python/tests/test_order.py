"""CD-GraB: one epoch by hand, exact resuming, and what an order is worth."""

import pytest
import ranks
import torch
from torch import nn

import thinwire.data

GRADIENTS = [
    [[1, 0, 0, 0], [0.5, 0, 0, 0], [-1, 0, 0, 0], [-0.75, 0, 0, 0]],
    [[0, 1, 0, 0], [0.25, -1, 0, 0], [0, 0.5, 0, 0], [0.25, -0.5, 0, 0]],
]


def one_epoch(rank):
    order = thinwire.data.CoordinatedOrder(4, sketch=None)
    order._order = [0, 1, 2, 3]
    sums = []
    for index in order:
        order.note([torch.tensor(GRADIENTS[rank][index], dtype=torch.float32)])
        if order._sum is not None:
            sums.append(order._sum.abs().max().item())
    return list(order), order.epoch, max(sums)


def test_one_epoch_is_that_of_another_program():
    """Its largest |s| is 2, and all inner products are exact."""
    ends = ranks.run(2, one_epoch)
    assert [order for order, *_ in ends] == [[0, 2, 3, 1], [0, 3, 2, 1]]
    assert [epoch for _, epoch, _ in ends] == [1, 1] and ends[0][2] == ends[1][2] == 2.0


def walked(rank, batches, epochs, stop):
    """Orders of some epochs, with a resume after `stop` batches if it is not 0."""
    torch.manual_seed(rank)
    gradients = torch.randn(batches, 50)
    order, seen, count = thinwire.data.CoordinatedOrder(batches, sketch=16, seed=3), [], 0
    while order.epoch < epochs:
        for index in order:
            seen.append(index)
            order.note([gradients[index][:20], None, gradients[index][20:]])
            count += 1
            if count == stop:
                state = order.state_dict()
                order = thinwire.data.CoordinatedOrder(batches, sketch=16, seed=3)
                order.load_state_dict(state)
                break
    return seen


@pytest.mark.parametrize("batches", [1, 2, 5, 8])
def test_every_epoch_has_every_batch_and_a_resume_changes_nothing(batches):
    whole = ranks.run(3, walked, batches, 4, 0)
    for seen in whole:
        assert all(sorted(seen[at : at + batches]) == list(range(batches)) for at in range(0, 4 * batches, batches))
    for stop in range(1, 3 * batches):
        assert ranks.run(3, walked, batches, 4, stop) == whole


def test_another_number_of_batches_is_refused():
    order = thinwire.data.CoordinatedOrder(4)
    with pytest.raises(ValueError, match="batches: expected 6, found 4"):
        thinwire.data.CoordinatedOrder(6).load_state_dict(order.state_dict())
    with pytest.raises(ValueError, match="batches = 0"):
        thinwire.data.CoordinatedOrder(0)
    with pytest.raises(ValueError, match="sketch = 0"):
        thinwire.data.CoordinatedOrder(4, sketch=0)


def longest(orders, gradients):
    """How far the sum of all ranks' gradients, less their mean, gets from 0 on the way through an epoch."""
    centred = gradients - gradients.mean((0, 1))
    steps = sum(centred[rank][torch.tensor(order)] for rank, order in enumerate(orders))
    return steps.cumsum(0).norm(dim=1).max().item()


def in_few_dimensions():
    """Where there are more dimensions than gradients nothing can be balanced."""
    torch.manual_seed(0)
    return torch.randn(2, 128, 8) @ torch.randn(8, 2000) / 2000**0.5


def balanced(rank, sketch, epochs):
    gradients = in_few_dimensions()
    order = thinwire.data.CoordinatedOrder(128, sketch=sketch)
    first = list(order)
    for _ in range(epochs):
        for index in order:
            order.note([gradients[rank][index]])
    return first, list(order)


@pytest.mark.parametrize("sketch", [None, 256])
def test_sums_along_the_way_get_smaller_than_in_a_random_order(sketch):
    ends = ranks.run(2, balanced, sketch, 12)
    at_random, in_order = (longest([end[which] for end in ends], in_few_dimensions()) for which in (0, 1))
    assert in_order < 0.6 * at_random


def test_it_trains_better_than_random_reshuffling():
    """Least squares by single examples: the loss after some epochs, over seeds, with an order and with random reshuffling."""

    def ends(coordinated, seed):
        generator = torch.Generator().manual_seed(seed)
        inputs, noise = torch.randn(64, 8, generator=generator), torch.randn(64, 1, generator=generator)
        targets = inputs @ torch.ones(8, 1) + noise
        model = nn.Linear(8, 1, bias=False)
        nn.init.zeros_(model.weight)
        order = thinwire.data.CoordinatedOrder(64, seed=seed)
        for _ in range(30):
            indexes = order if coordinated else torch.randperm(64, generator=generator).tolist()
            for index in indexes:
                model.zero_grad()
                (model(inputs[index]) - targets[index]).square().mean().backward()
                if coordinated:
                    order.note(model.parameters())
                with torch.no_grad():
                    model.weight -= 0.01 * model.weight.grad
        best = torch.linalg.lstsq(inputs, targets).solution
        return (inputs @ (model.weight.T - best)).square().mean().item()

    excess = {way: sum(ends(way, seed) for seed in range(6)) for way in (True, False)}
    assert excess[True] < 0.7 * excess[False]
