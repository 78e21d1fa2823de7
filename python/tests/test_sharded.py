"""FSDP2 inside a replica and Thinwire across replicas: 2 × 2 and 2 × 4 processes on gloo, on the host."""

import functools

import numpy
import pytest
import ranks
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import thinwire

LR = 1e-2
KINDS = {
    "AdamW": {},
    "OneBitAdam": {"warmup": 4},
    "ZeroOneAdam": {"sync_every": 3, "variance_gap": 4},
    "EfficientAdam": {},
}
LOSSLESS = {
    "AdamW": {"clip": 0.5, "exact_codec": "f32"},
    "OneBitAdam": {"clip": 0.5, "exact_codec": "f32", "codec": "f32"},
    "ZeroOneAdam": {"clip": 0.5, "exact_codec": "f32", "codec": "f32"},
    "EfficientAdam": {"clip": 0.5, "codec": "f32"},
}
AUTO = {"warmup": "auto", "betas": (0.9, 0.75), "exact_codec": "f32", "codec": "f32"}
STEPS = 12


def network():
    """Shards of 9 rows and of 3 are uneven on 2 and on 4 ranks, and on 4 some are empty."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 9), nn.GELU(), nn.Linear(9, 3))


def batch(rank, step):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(8, 6, generator=generator)
    return x, torch.sin(x[:, :3]) + x[:, 3:]


def loss_of(model, rank, step):
    x, y = batch(rank, step)
    x = x.to(next(model.parameters()).dtype)
    return nn.functional.mse_loss(model(x).float(), y)


@functools.cache
def meshes(shards):
    return init_device_mesh("cpu", (dist.get_world_size() // shards, shards), mesh_dim_names=("across", "inside"))


def sharded(shards, model=None, **options):
    """A network in shards, and the mesh."""
    mesh, model = meshes(shards), network() if model is None else model
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh["inside"], **options)
    return fully_shard(model, mesh=mesh["inside"], **options), mesh


def build(kind, params, **words):
    return getattr(thinwire, kind)(params, **{"lr": LR, "deadline": 60, **KINDS[kind], **words})


def whole(model):
    """The parameters put together again, flat; all shards of a replica together."""
    parts = [p.full_tensor() if isinstance(p, DTensor) else p for p in model.parameters()]
    return torch.cat([part.detach().float().flatten() for part in parts]).numpy().copy()


def groups(model):
    """Weights and biases; of the biases some ranks have nothing."""
    weights = [param for param in model.parameters() if param.ndim > 1]
    biases = [param for param in model.parameters() if param.ndim == 1]
    return [{"params": weights, "weight_decay": 0.1}, {"params": biases, "lr": LR / 2}]


def steps(model, optimizer, rank, count=STEPS, first=0):
    for step in range(first, first + count):
        optimizer.zero_grad()
        loss_of(model, rank, step).backward()
        optimizer.step()


def in_shards(rank, shards, kind, words):
    model, mesh = sharded(shards)
    optimizer = build(kind, groups(model), process_group=mesh["across"], **words)
    steps(model, optimizer, rank)
    optimizer.sync()
    with torch.no_grad():
        loss = numpy.mean([loss_of(model, each, 99).item() for each in range(8)])
    return whole(model), loss, optimizer.traffic()


def in_one_piece(rank, shards, kind, words):
    """The same on one rank a replica, which sees the batches of all that hold the replica's shards."""
    model = network()
    optimizer = build(kind, groups(model), **words)
    for step in range(STEPS):
        optimizer.zero_grad()
        for shard in range(shards):
            (loss_of(model, shards * rank + shard, step) / shards).backward()
        optimizer.step()
    optimizer.sync()
    with torch.no_grad():
        loss = numpy.mean([loss_of(model, each, 99).item() for each in range(8)])
    return whole(model), loss, optimizer.traffic()


def together(rank, works):
    """One thing after the other on the same processes: starting them takes longer than all of this. PyTorch remembers the groups behind
    DTensors past the end of a process group, so they cannot be those of other tests."""
    return {name: work(rank, *arguments) for name, (work, *arguments) in works.items()}


def on_new_ranks(n, works):
    ends = ranks.collect(ranks.start(n, together, works))
    return {name: [end[name] for end in ends] for name in works}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("folder")


@pytest.fixture(scope="module")
def on_four(folder):
    """2 × 2."""
    works = {kind: (in_shards, 2, kind, words) for kind, words in LOSSLESS.items()}
    works |= {"signs": (in_shards, 2, "OneBitAdam", {}), "ways": (ways,), "consensus": (between_syncs,), "ddp": (with_ddp_inside,)}
    works |= {"skip": (bad_gradient, "skip"), "error": (bad_gradient, "error"), "wrong": (in_the_wrong_way,)}
    works |= {"saved": (saved, folder, 5), "resumed": (resumed, folder, 5)}
    works |= {f"kept {kind}": (kept, folder, kind, flat) for kind, flat in FLAT.items()}
    return on_new_ranks(4, works)


@pytest.fixture(scope="module")
def on_eight(on_four, folder):
    """2 × 4."""
    works = {kind: (in_shards, 4, kind, {}) for kind in ("ZeroOneAdam", "EfficientAdam")}
    works |= {f"loaded {kind}": (loaded, folder, kind, FLAT[kind], 4, 5) for kind in ("ZeroOneAdam", "OneBitAdam")}
    return on_new_ranks(8, works | {"auto": (in_shards, 4, "OneBitAdam", AUTO)})


def compare(ours, shards, kind, words):
    theirs = ranks.run(2, in_one_piece, shards, kind, words)
    assert all((params == ours[0][0]).all() for params, *_ in ours), "replicas are equal to the bit"
    assert all(traffic["rounds"] == theirs[0][2]["rounds"] for *_, traffic in ours)
    return ours[0], theirs[0]


@pytest.mark.parametrize("kind", KINDS)
def test_with_codec_f32_as_in_one_piece(kind, on_four):
    """To the rounding of FSDP's own sums: it adds the shards' gradients up in another order than backward() accumulates them."""
    (ours, *_), (theirs, *_) = compare(on_four[kind], 2, kind, LOSSLESS[kind])
    numpy.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-5)
    assert numpy.abs(ours - whole(network())).max() > 5 * LR


@pytest.mark.parametrize("kind", ["OneBitAdam", "ZeroOneAdam", "EfficientAdam"])
def test_with_signs_as_good_as_in_one_piece(kind, on_four, on_eight):
    ends, shards = (on_four["signs"], 2) if kind == "OneBitAdam" else (on_eight[kind], 4)
    (_, ours, _), (_, theirs, _) = compare(ends, shards, kind, {})
    assert abs(ours / theirs - 1) < 0.01  # shards cut other blocks


def test_the_end_of_the_warm_up_is_found_by_all_shards_together(on_eight):
    (ours, _, traffic), (theirs, _, expected) = compare(on_eight["auto"], 4, "OneBitAdam", AUTO)
    assert 0 < traffic["rounds"]["coarse"] == expected["rounds"]["coarse"] < STEPS
    numpy.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-5)


# ---- what FSDP2 offers -----------------------------------------------------------------------------


def accumulated(model, rank, step):
    """Two batches a step, of which FSDP averages once."""
    for part in range(2):
        model.set_requires_gradient_sync(part == 1)
        (loss_of(model, rank + 10 * part, step) / 2).backward()


def clipped(model, rank, step):
    loss_of(model, rank, step).backward()
    assert nn.utils.clip_grad_norm_(model.parameters(), 1e-3).full_tensor() > 1e-3
    norm = torch.cat([p.grad.full_tensor().flatten() for p in model.parameters()]).norm()
    assert abs(norm / 1e-3 - 1) < 1e-3


def plain(model, rank, step):
    loss_of(model, rank, step).backward()


def ways(rank):
    """Every way of FSDP2's: the parameters of all ranks must be the same at the end, and the loss lower."""
    ends = {}
    for name, options, backward, dtype in [
        ("reshard_after_forward", {"reshard_after_forward": False}, plain, None),
        ("mixed precision", {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float32)}, plain, None),
        ("accumulation", {}, accumulated, None),
        ("clip_grad_norm_", {}, clipped, None),
        ("compiled", {}, plain, None),
        ("bfloat16 parameters", {"mp_policy": MixedPrecisionPolicy(cast_forward_inputs=True)}, plain, torch.bfloat16),
    ]:
        model = network() if dtype is None else network().to(dtype)
        model, mesh = sharded(2, model, **options)
        called = torch.compile(model, backend="eager") if name == "compiled" else model
        optimizer = build("ZeroOneAdam", model.parameters(), process_group=mesh["across"].get_group())
        first = loss_of(model, 7, 99).item()
        for step in range(8):
            optimizer.zero_grad()
            backward(called, rank, step)
            optimizer.step()
        optimizer.sync()
        ends[name] = whole(model), loss_of(model, 7, 99).item() / first
    return ends


def test_every_way_of_fsdp2(on_four):
    ends = on_four["ways"]
    for name, (params, gain) in ends[0].items():
        assert all((params == other[name][0]).all() for other in ends), name
        assert gain < 0.97, name


def bad_gradient(rank, policy):
    model, mesh = sharded(2)
    optimizer = build("ZeroOneAdam", model.parameters(), process_group=mesh["across"], non_finite=policy)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, rank, step).backward()
        if (rank, step) == (3, 1):
            model[0].weight.grad.to_local()[0] = torch.nan  # of one shard alone
        try:
            optimizer.step()
        except FloatingPointError as error:
            return str(error)
    optimizer.sync()
    return whole(model), optimizer.traffic()["left_out"]


def test_a_bad_gradient_of_one_shard_is_its_replicas(on_four):
    ends = on_four["skip"]
    assert [left_out for _, left_out in ends] == [0, 0, 1, 1]
    assert all((params == ends[0][0]).all() and numpy.isfinite(params).all() for params, _ in ends)
    assert all("worker 1 has a gradient that is infinite or NaN at step 1" in text for text in on_four["error"])


class WithStatistics(nn.Sequential):
    def __init__(self):
        super().__init__(*network())
        self.register_buffer("seen", torch.zeros(2))


def between_syncs(rank):
    """consensus() and buffers, while the replicas differ."""
    model, mesh = sharded(2, WithStatistics())
    words = {"sync_every": 50, "variance_steps": [0], "buffers": model}
    optimizer = thinwire.ZeroOneAdam(model.parameters(), lr=LR, process_group=mesh["across"], **words)
    model.seen.fill_(rank)
    steps(model, optimizer, rank, 3)
    own = whole(model)
    with optimizer.consensus():
        common, seen = whole(model), model.seen.tolist()
    again = whole(model)
    optimizer.sync()
    return own, common, again, seen, model.seen.tolist()


def test_consensus_and_buffers(on_four):
    ends = on_four["consensus"]
    assert (ends[0][0] == ends[1][0]).all() and (ends[0][0] != ends[2][0]).any()
    for own, common, again, *seen in ends:
        assert (own == again).all() and seen == [[1.5, 1.5], [1.5, 1.5]]
        numpy.testing.assert_array_equal(common, (ends[0][0] + ends[2][0]) / 2)


# ---- DDP inside ------------------------------------------------------------------------------------


def with_ddp_inside(rank):
    mesh, model = meshes(2), network()
    wrapped = DistributedDataParallel(model, process_group=mesh["inside"].get_group())
    optimizer = build("AdamW", groups(model), process_group=mesh["across"], clip=0.5)
    steps(wrapped, optimizer, rank)
    with pytest.raises(RuntimeError, match="averages gradients that this optimizer averages too"):
        other = network()
        optimizer = build("AdamW", other.parameters(), process_group=mesh["across"])
        steps(DistributedDataParallel(other), optimizer, rank, 1)
    return whole(model)


def test_ddp_inside_and_thinwire_across(on_four):
    theirs = ranks.run(2, in_one_piece, 2, "AdamW", {"clip": 0.5})[0][0]
    ends = on_four["ddp"]
    for params in ends:
        assert (params == ends[0]).all()
        numpy.testing.assert_allclose(params, theirs, rtol=0, atol=2e-5)


# ---- what is refused, and by whom ------------------------------------------------------------------


def refused(build_it):
    with pytest.raises((ValueError, RuntimeError)) as error:
        build_it()
    return str(error.value)


def in_the_wrong_way(rank):
    mesh = meshes(2)
    texts = {}
    model, _ = sharded(2)
    texts["no group"] = refused(lambda: build("AdamW", model.parameters()))
    texts["inside"] = refused(lambda: build("AdamW", model.parameters(), process_group=mesh["inside"]))
    texts["two dimensions"] = refused(lambda: build("AdamW", model.parameters(), process_group=mesh))
    hybrid = fully_shard(network(), mesh=mesh)
    texts["hybrid"] = refused(lambda: build("AdamW", hybrid.parameters(), process_group=mesh["across"]))
    columns = nn.Linear(4, 4)
    columns.weight = nn.Parameter(distribute_tensor(columns.weight.detach(), mesh["inside"], [Shard(1)]))
    texts["columns"] = refused(lambda: build("AdamW", [columns.weight], process_group=mesh["across"]))
    half = network()
    fully_shard(half[0], mesh=mesh["inside"])
    texts["half"] = refused(lambda: build("AdamW", half.parameters(), process_group=mesh["across"]))
    later = network()
    optimizer = build("AdamW", later.parameters(), process_group=mesh["across"])
    plain(fully_shard(later, mesh=mesh["inside"]), rank, 0)
    texts["later"] = refused(optimizer.step)
    words = {"codec": "none-such"} if rank == 3 else {}
    texts["one rank"] = refused(lambda: build("OneBitAdam", model.parameters(), process_group=mesh["across"], **words))
    params = list(model.named_parameters())
    params = params[::-1] if rank == 3 else params
    texts["another order"] = refused(lambda: build("AdamW", params, process_group=mesh["across"]))
    words = {"eps": 1e-3} if rank % 2 else {}
    texts["another option"] = refused(lambda: build("AdamW", model.parameters(), process_group=mesh["across"], **words))
    return texts


def test_what_is_refused_says_what_to_do(on_four):
    ends = on_four["wrong"]
    for rank, texts in enumerate(ends):
        assert all('fully_shard(model, mesh=mesh["inside"])' in texts[way] for way in ("no group", "inside", "hybrid")), texts
        assert "found a mesh of 2 ('across', 'inside')" in texts["two dimensions"]
        assert "HSDP" in texts["hybrid"] and "mesh of 2" in texts["hybrid"]
        assert texts["columns"].startswith("parameter 0 (weight) is placed as") and "first dimension" in texts["columns"]
        assert texts["half"].startswith("parameter 2 (2.weight) is whole") and "fully_shard on the whole model" in texts["half"]
        assert "was replaced by a shard (DTensor" in texts["later"] and "build the optimizer after that" in texts["later"]
        assert ("none-such" if rank == 3 else "rank 3 did not build its optimizer: ValueError: ") in texts["one rank"]
        assert "parameter 0: rank 0 has 0.weight float32[9, 6], rank 3 has 2.bias float32[3]" in texts["another order"]
        assert "among the shards of one replica" in texts["another option"]
    assert any("disagrees on eps" in texts["another option"] for texts in ends)


# ---- a folder --------------------------------------------------------------------------------------


def saved(rank, folder, count):
    model, mesh = sharded(2)
    optimizer = build("ZeroOneAdam", model.parameters(), process_group=mesh["across"])
    steps(model, optimizer, rank, 4)
    optimizer.save(folder)
    steps(model, optimizer, rank, count, 4)
    return [p.to_local().detach().numpy().copy() for p in model.parameters()]


def resumed(rank, folder, count):
    torch.manual_seed(0)
    model, mesh = sharded(2, nn.Sequential(nn.Linear(6, 9), nn.GELU(), nn.Linear(9, 3)))
    optimizer = build("ZeroOneAdam", model.parameters(), process_group=mesh["across"], resume=folder)
    steps(model, optimizer, rank, count, 4)
    return [p.to_local().detach().numpy().copy() for p in model.parameters()]


def resumed_otherwise(rank, folder):
    model, mesh = sharded(1)
    return refused(lambda: build("ZeroOneAdam", model.parameters(), process_group=mesh["across"], resume=folder))


def test_a_folder_is_resumed_bit_for_bit_by_as_many_shards(on_four, folder):
    for ours, theirs in zip(on_four["saved"], on_four["resumed"], strict=True):
        assert all((a == b).all() for a, b in zip(ours, theirs, strict=True))
    on_two = on_new_ranks(2, {"one replica": (resumed, folder, 2), "one shard": (resumed_otherwise, folder)})
    for text in on_two["one shard"]:
        assert "expected shard-0-of-1, found shard-0-of-2, shard-1-of-2" in text


# ---- torch.distributed.checkpoint ------------------------------------------------------------------

RESUMED = {
    "ZeroOneAdam": {"sync": "custom", "sync_steps": [4, 7], "variance_steps": [0, 1, 2]},
    "OneBitAdam": {"warmup": 3},
    "EfficientAdam": {},
    "LocalAdam": {"sync_every": 4, "codec": "sign"},
    "AdamW": {},
}


def fresh(shards, kind, seed=3):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 9), nn.GELU(), nn.Linear(9, 3))
    model, mesh = sharded(shards, model)
    words = {"lr": LR, "deadline": 60, "process_group": mesh["across"], "init": "broadcast"}
    return model, mesh, getattr(thinwire, kind)(groups(model), **words, **RESUMED[kind])


def conserved(model, mesh, optimizer):
    """What error feedback keeps for later rounds, the mean of e and E, and the moments: whole, whoever holds them."""
    state, across = (
        optimizer._worker._state(lambda n, kind: torch.zeros(n, dtype=torch.float32 if kind == "f4" else torch.float64)),
        mesh["across"],
    )
    values, shares = state["values"], {name: (how, start) for name, how, start in optimizer._worker._state_shares()}
    means = {}
    if "codec_up" in optimizer._worker.config:
        means["owed"] = values["up_residue"] / across.size()
        start, count = shares["down_residue"][1], values["down_residue"].numel()
        means["owed"][start : start + count] += values["down_residue"]
    means |= {name: values[name] / across.size() for name in ("m", "v", "u") if name in values}
    ends = {}
    for name, vector in means.items():
        dist.all_reduce(vector, group=across.get_group())
        wholes = []
        for part, param in zip(vector.split(optimizer._flat.lengths), optimizer._flat.params, strict=True):
            like = {"shape": param.shape, "stride": param.stride()}
            placed = DTensor.from_local(part.view(param.to_local().shape), param.device_mesh, param.placements, **like)
            wholes.append(placed.full_tensor().flatten())
        ends[name] = torch.cat(wholes).numpy().copy()
    return ends


def kept(rank, folder, kind, flat):
    """Saves in the middle, goes on, and does so again from the checkpoint."""
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    model, mesh, optimizer = fresh(2, kind)
    steps(model, optimizer, rank, 6)
    state = {"model": get_model_state_dict(model), "optim": get_optimizer_state_dict(model, optimizer, options=options)}
    checkpoint.save(state, checkpoint_id=folder / kind)
    held = conserved(model, mesh, optimizer)
    moment = state["optim"]["state.0.weight.m"] if flat else state["optim"]["state"]["0.weight"]["m"]
    placed = isinstance(moment, DTensor) and moment.placements == model[0].weight.placements
    steps(model, optimizer, rank, 3, 6)
    on = whole(model)
    optimizer.sync()
    again = loaded(rank, folder, kind, flat, 2, 5)
    return held, on, again, placed


def loaded(rank, folder, kind, flat, shards, seed):
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    model, mesh, optimizer = fresh(shards, kind, seed)
    state = {"model": get_model_state_dict(model), "optim": get_optimizer_state_dict(model, optimizer, options=options)}
    checkpoint.load(state, checkpoint_id=folder / kind)
    set_model_state_dict(model, state["model"])
    set_optimizer_state_dict(model, optimizer, state["optim"], options=options)
    held = conserved(model, mesh, optimizer)
    count = optimizer._worker.steps
    steps(model, optimizer, rank, 3, 6)
    on = whole(model)
    optimizer.sync()
    return held, on, count, whole(model)


FLAT = {"ZeroOneAdam": False, "OneBitAdam": True, "EfficientAdam": False, "LocalAdam": False, "AdamW": True}


@pytest.mark.parametrize("kind", FLAT)
def test_checkpoints_resume_bit_for_bit_and_with_other_shards_and_workers(kind, on_four, loaded_by_others):
    for held, on, (again, on_again, count, _), placed in on_four[f"kept {kind}"]:
        assert placed == (kind not in ("EfficientAdam", "LocalAdam"))  # there each worker has moments of its own
        assert count == 6 and (on == on_again).all()
        assert all((held[name] == again[name]).all() for name in held)
    before = on_four[f"kept {kind}"][0][0]
    assert kind == "AdamW" or numpy.abs(before["owed"]).max() > 0
    for how, ends in loaded_by_others.items():
        ends = ends.get(f"loaded {kind}", [])
        assert ends or how == "2 x 4"
        for held, on, count, end in ends:
            assert count == 6 and numpy.isfinite(on).all() and (end == ends[0][3]).all(), how
            for name in before:
                if name in ("m", "u") and kind == "ZeroOneAdam" and how != "2 x 4":
                    continue  # what other workers had taken of local steps is common now
                numpy.testing.assert_allclose(held[name], before[name], rtol=0, atol=1e-6, err_msg=f"{how} {name}")


@pytest.fixture(scope="module")
def loaded_by_others(on_four, on_eight, folder):
    """By 4 shards instead of 2, by 4 workers instead of 2, by one."""
    works = {f"loaded {kind}": (loaded, folder, kind, flat, 1, 5) for kind, flat in FLAT.items()}
    alone = {f"loaded {kind}": (loaded, folder, kind, flat, 2, 5) for kind, flat in FLAT.items()}
    return {"2 x 4": on_eight, "4 x 1": on_new_ranks(4, works), "1 x 2": on_new_ranks(2, alone)}
