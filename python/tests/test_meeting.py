"""Ranks compare what they are about to train: names, shapes, types and order, before anything is overwritten."""

import pytest
import ranks
import torch
import torch.distributed as dist
from models import bits, tiny_gpt
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

import thinwire
from thinwire._listing import Listing, disagreement

INITS = ["check", "broadcast"]


class Pairs(nn.Module):
    """Layers that could take each other's place."""

    def __init__(self):
        super().__init__()
        self.query, self.key = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        for param in self.parameters():
            nn.init.ones_(param)  # equal values: no digest of the vector could tell them apart


class Wrapper(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.inner = model


def meets(rank, params, init):
    """The error, and whether this rank's parameters are as they were."""
    model, params = params(rank)
    before = bits(model)
    try:
        thinwire.AdamW(params, init=init, deadline=60)
        error = None
    except ValueError as refused:
        error = str(refused)
    return error, bool(torch.equal(before, bits(model)))


def reversed_pairs(rank):
    model = Pairs()
    return model, list(model.parameters())[:: -1 if rank else 1]


def reversed_names(rank):
    model = Pairs()
    return model, list(model.named_parameters())[:: -1 if rank else 1]


def transposed(rank):
    layer = nn.Linear(*((3, 4) if rank == 0 else (4, 3)), bias=False)
    with torch.no_grad():
        layer.weight.fill_(float(rank))
    return layer, layer.parameters()


def of_half(rank):
    layer = nn.Linear(3, 4, bias=False, dtype=torch.bfloat16 if rank == 2 else torch.float32)
    with torch.no_grad():
        layer.weight.fill_(1.0)
    return layer, layer.parameters()


def one_more(rank):
    """As many values, in another number of parameters."""
    layer = nn.Sequential(nn.Linear(3, 4, bias=False)) if rank == 0 else nn.Sequential(nn.Linear(3, 2, False), nn.Linear(2, 3, False))
    return layer, layer.parameters()


@pytest.mark.parametrize("init", INITS)
@pytest.mark.parametrize(
    ("n", "params", "expected"),
    [
        (2, reversed_pairs, "parameter 0: worker 0 has query.weight float32[4, 4], worker 1 has key.weight float32[4, 4]"),
        (2, reversed_names, "parameter 0: worker 0 has query.weight float32[4, 4], worker 1 has key.weight float32[4, 4]"),
        (2, transposed, "parameter 0: worker 0 has weight float32[4, 3], worker 1 has weight float32[3, 4]"),
        (3, of_half, "parameter 0: worker 0 has weight float32[4, 3], worker 2 has weight bfloat16[4, 3]"),
        (2, one_more, "(1 and 2 trained parameters)"),
    ],
)
def test_parameters_that_are_not_the_same_are_named_and_left_alone(init, n, params, expected):
    for error, unchanged in ranks.run(n, meets, params, init):
        assert expected in error and "the same parameters in the same order" in error
        assert unchanged


def wrapped_on_one(rank):
    """Harmless: one rank's model is in a wrapper, or has names where the other has none."""
    model = Pairs()
    keeps = Wrapper(model) if rank else None
    params = model.named_parameters() if rank else model.parameters()
    optimizer = thinwire.AdamW(params, deadline=60)
    assert keeps is None or keeps.inner is model
    return optimizer.param_groups[0].get("param_names")


def test_what_is_harmless_is_accepted():
    assert ranks.run(2, wrapped_on_one) == [None, ["query.weight", "key.weight"]]


def test_found_names_count_only_as_an_order():
    shapes, types = [[1], [1]], ["torch.float32"] * 2
    here = Listing(None, ["a", "b"], shapes, types)
    assert disagreement(here, "worker 0", Listing(None, ["a", "c"], shapes, types), "worker 1") is None
    assert disagreement(here, "worker 0", Listing(None, [None, None], shapes, types), "worker 1") is None
    assert disagreement(here, "worker 0", Listing(None, ["b", "a"], shapes, types), "worker 1").startswith("parameter 0: worker 0 has a ")
    given = Listing(["a", "b"], ["x", "y"], shapes, types)
    assert "worker 1 has c " in disagreement(given, "worker 0", given._replace(given=["a", "c"]), "worker 1")
    assert Listing.from_bytes(given.to_bytes()) == given


def named(rank):
    ends = []
    for names in (False, True):
        model = tiny_gpt()
        optimizer = thinwire.ZeroOneAdam(model.named_parameters() if names else model.parameters(), lr=1e-2, sync_every=2)
        for step in range(5):
            optimizer.zero_grad()
            model.loss(100 * step + rank).backward()
            optimizer.step()
        state = optimizer.state_dict()
        optimizer.load_state_dict(state)
        ends.append(bits(model))
    return bool(torch.equal(*ends))


def test_named_parameters_train_as_others_do():
    assert ranks.run(2, named) == [True, True]


# ---- shards ----------------------------------------------------------------------------------------


def refused(build):
    with pytest.raises((ValueError, RuntimeError)) as error:
        build()
    return str(error.value)


def shards(rank):
    """What each kind of shard is refused with."""
    mesh = init_device_mesh("cpu", (2,))
    sharded = nn.Linear(4, 4)
    sharded.weight = nn.Parameter(distribute_tensor(sharded.weight.detach(), mesh, [Shard(0)]))
    second = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    fully_shard(second, mesh=mesh)
    flat = FullyShardedDataParallel(nn.Linear(4, 4), device_id=torch.device("cpu"))
    original = FullyShardedDataParallel(nn.Linear(4, 4), device_id=torch.device("cpu"), use_orig_params=True)
    models = [sharded, second, flat, original]
    return [refused(lambda model=model: thinwire.AdamW(model.parameters(), init="broadcast", deadline=60)) for model in models]


def test_shards_are_refused_by_name():
    for tensor, second, flat, original in ranks.run(2, shards):
        assert all("FSDP averages gradients inside a replica, and this optimizer across" in text for text in (tensor, second))
        assert "(FlatParameter of FSDP)" in flat
        assert "(FSDP with use_orig_params=True)" in original
        assert all("accepted: whole parameters, or the shards of FSDP2" in text for text in (flat, original))


def sharded_later(rank, shard):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    for param in model.parameters():
        nn.init.ones_(param)
    optimizer = thinwire.AdamW(model.parameters(), deadline=60)
    shard(model)(torch.ones(2, 4)).sum().backward()
    text = refused(optimizer.step)
    dist.barrier()
    return text


def by_fully_shard(model):
    return fully_shard(model, mesh=init_device_mesh("cpu", (2,)))


def by_flat_parameters(model):
    return FullyShardedDataParallel(model, device_id=torch.device("cpu"))


def by_original_parameters(model):
    return FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)


@pytest.mark.parametrize(
    ("shard", "expected"),
    [
        (by_fully_shard, "parameter 0 (0.weight) was replaced by a shard (DTensor"),
        (by_flat_parameters, "parameter 0 (0.weight) was replaced by a shard (FlatParameter of FSDP)"),
        (by_original_parameters, "a parameter became a shard (FSDP with use_orig_params=True)"),
    ],
)
def test_an_optimizer_built_before_sharding_is_refused_at_its_step(shard, expected):
    for text in ranks.run(2, sharded_later, shard):
        assert expected in text and "fully_shard (FSDP2) first, and build the optimizer after that" in text


def test_a_parameter_replaced_later_is_told_once(caplog):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = thinwire.AdamW(model.parameters())
    nn.utils.parametrizations.weight_norm(model[1])  # PyTorch's own: it keeps no parameter
    model(torch.ones(1, 2)).sum().backward()
    for _ in range(2):
        optimizer.step()
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1 and "parameter 2 (1.weight) has no gradient" in told[0] and "after the model is complete" in told[0]


def test_a_model_without_a_gradient_is_told_once(caplog):
    model = tiny_gpt()
    optimizer = thinwire.AdamW(model.parameters())
    for _ in range(2):
        optimizer.step()
    assert [record.getMessage() for record in caplog.records] == [
        "step 0: no parameter of worker 0 has a gradient, which counts as a gradient of zeros in the mean of all workers. Call "
        "backward() before step(), on the model that the optimizer was built for"
    ]
    caplog.clear()
    model.loss(0).backward()
    model.head.weight.grad = None  # one without is ordinary
    optimizer.step()
    assert not caplog.records


def test_a_model_with_nothing_to_train_is_refused():
    with pytest.raises(ValueError, match="expected some that require a gradient, found none"):
        thinwire.AdamW(tiny_gpt().requires_grad_(False).parameters())
