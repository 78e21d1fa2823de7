"""Weights of ranks, local Adam's common model, and an optimizer's usual betas."""

import pytest
import ranks
import torch
from models import bits, tiny_gpt
from torch import nn

import thinwire


def uneven(rank, weighted):
    """Two ranks, of which one has three times as many examples: the parameters after some steps."""
    torch.manual_seed(0)
    data, targets = torch.randn(5, 4, 8), torch.randn(5, 4, 1)
    model = nn.Linear(8, 1)
    optimizer = thinwire.AdamW(model.parameters(), lr=0.05, weighted=weighted)
    mine = slice(0, 1) if rank == 0 else slice(1, 4)
    for step in range(5):
        examples = data[step][mine]
        if weighted:
            optimizer.set_weight(len(examples))
        optimizer.zero_grad()
        ((model(examples) - targets[step][mine]) ** 2).mean().backward()
        optimizer.step()
    return bits(model)


def whole():
    torch.manual_seed(0)
    data, targets = torch.randn(5, 4, 8), torch.randn(5, 4, 1)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    for step in range(5):
        optimizer.zero_grad()
        ((model(data[step]) - targets[step]) ** 2).mean().backward()
        optimizer.step()
    return bits(model)


def test_weighted_ranks_are_one_with_all_examples():
    wanted = whole()
    for got in ranks.run(2, uneven, True):
        assert (got - wanted).abs().max() < 1e-6
    for got in ranks.run(2, uneven, False):
        assert (got - wanted).abs().max() > 1e-3  # or the test would show nothing


def test_a_weight_wants_the_option():
    optimizer = thinwire.AdamW(nn.Linear(2, 2).parameters())
    with pytest.raises(ValueError, match="weighted = true"):
        optimizer.set_weight(2)


def looked_at(rank):
    """The parameters at each step, in a consensus and outside of it; what was sent; and how a run ends that nobody looked at."""
    ends, seen = [], []
    for looks in (True, False):
        model = tiny_gpt()
        optimizer = thinwire.LocalAdam(model.parameters(), lr=1e-2, sync_every=3)
        for step in range(7):
            optimizer.zero_grad()
            model.loss(10 * step + rank).backward()
            optimizer.step()
            if looks:
                own, sent = bits(model), optimizer.traffic()["bytes_sent"]
                with optimizer.consensus():
                    seen.append((own, bits(model)))
                assert (bits(model) == own).all() and optimizer.traffic()["bytes_sent"] == sent
        ends.append(bits(model))
    return seen, ends


def test_a_consensus_of_local_adam_is_its_anchor():
    (ours, ends), (theirs, _) = ranks.run(2, looked_at)
    for step, ((own, common), (other, same)) in enumerate(zip(ours, theirs, strict=True)):
        assert (common == same).all()
        synced = step % 3 == 2
        assert (own == other).all() == synced and (own == common).all() == synced
        if not synced and step > 2:
            assert (common == ours[step - 1 - step % 3][1]).all()  # as the last sync left it
    assert (ends[0] == ends[1]).all()


@pytest.mark.parametrize(("kind", "betas"), [("AdamW", (0.9, 0.999)), ("Lion", (0.9, 0.99)), ("Birder", (0.95, 0.95))])
def test_the_usual_betas_are_the_papers(kind, betas):
    optimizer = getattr(thinwire, kind)(nn.Linear(2, 2).parameters())
    assert optimizer.param_groups[0]["betas"] == betas
    assert tuple(optimizer._worker.config["betas"]) == betas


def test_local_adam_shows_its_outer_step():
    shown = repr(thinwire.LocalAdam(nn.Linear(2, 2).parameters(), preset="diloco"))
    assert "outer step nesterov every 500 steps" in shown
    schedule = {"peak": 1.0}
    shown = repr(thinwire.LocalAdam(nn.Linear(2, 2).parameters(), preset="dsm", sync="follow-lr", schedule=schedule))
    assert "outer step sign at most 32 steps apart" in shown


def test_birders_one_beta():
    optimizer = thinwire.Birder(nn.Linear(2, 2).parameters(), beta=0.9)
    assert optimizer.param_groups[0]["betas"] == (0.9, 0.9)
    with pytest.raises(ValueError, match="one β"):
        thinwire.Birder(nn.Linear(2, 2).parameters(), betas=(0.9, 0.99))


def test_alone_too_a_consensus_of_local_adam_is_its_anchor():
    model = nn.Linear(3, 1)
    optimizer = thinwire.LocalAdam(model.parameters(), lr=0.1, sync_every=4)
    start = bits(model)
    for _ in range(3):
        model(torch.ones(3)).sum().backward()
        optimizer.step()
    own = bits(model)
    with optimizer.consensus():
        assert (bits(model) == start).all()
    assert (bits(model) == own).all() and (own != start).any()


def test_a_worker_on_numpy_is_weighed_from_its_first_step_on():
    numpy = pytest.importorskip("numpy")
    ends = thinwire.local_group(2)

    def work(end):
        worker = thinwire.Worker("adam", parameters=2, group=end, weighted=True, eps=1.0, weight_decay=0.0, bias_correction=False)
        worker.set_weight([3, 1][end.rank])
        params = numpy.zeros(2, numpy.float32)
        worker.step(params, numpy.full(2, [1.0, -1.0][end.rank], numpy.float32), 1.0)
        return params

    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2) as pool:
        for params in pool.map(work, ends):
            m, v = 0.1 * 0.5, 0.001 * 0.25  # of the mean (3·1 − 1·1)/4
            assert abs(params + m / (v**0.5 + 1)).max() < 1e-6
    with pytest.raises(ValueError, match="weighted = true"):
        thinwire.Worker("adam", parameters=2).set_weight(2)


def test_the_tensors_of_lamb_are_the_parameters():
    model = nn.Linear(3, 2)
    optimizer = thinwire.OneBitLamb(model.parameters(), lr=0.05, warmup=3)
    assert optimizer._worker.config["tensors"] == [6, 2]
    worker = thinwire.Worker("one-bit-lamb", parameters=8, tensors=[6, 2], warmup=3)
    params = bits(model).numpy().copy()
    for step in range(6):
        optimizer.zero_grad()
        model(torch.arange(3.0) + step).sum().backward()
        worker.step(params, torch.cat([p.grad.flatten() for p in model.parameters()]).numpy(), 0.05)
        optimizer.step()
    assert (bits(model).numpy() == params).all()
