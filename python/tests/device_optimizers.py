"""The optimizers for PyTorch on Triton's interpreter beside the same on the host: ``python device_optimizers.py NAME...``.

A program of its own, because the interpreter must be chosen before Triton is imported. Each check raises where bits differ. Ranks are
processes on gloo; rank 0 is "on the device", the others are on the host, so a run with several ranks is a mixed one.
"""

import os
import sys
import tempfile

os.environ["TRITON_INTERPRET"] = "1"

import numpy  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as processes  # noqa: E402

import thinwire  # noqa: E402

BLOCK = {"block": 32}
OPTIMIZERS = {
    "AdamW": {},
    "OneBitAdam": {"warmup": 2, **BLOCK},
    "ZeroOneAdam": {"freeze": 3, "sync_every": 2, "variance_gap": 1, **BLOCK},
    "EfficientAdam": BLOCK,
}


def model(dtype=torch.float32):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3)).to(dtype)


def build(net, name, device, **more):
    groups = [{"params": net[0].parameters(), "weight_decay": 0.1}, {"params": net[2].parameters(), "lr": 0.02}]
    return getattr(thinwire, name)(groups, lr=0.05, device=device, **{**OPTIMIZERS[name], **more})


def gradients(net, step, rank=0):
    """Of nobody's loss; the last layer's bias has none in the second step."""
    for number, param in enumerate(net.parameters()):
        noise = torch.from_numpy(numpy.random.default_rng((number, step, rank)).standard_normal(param.shape))
        param.grad = (param.detach().double() + noise).to(param.dtype)
    if step == 1:
        param.grad = None


def bits(*tensors):
    return [tensor.detach().float().contiguous().view(torch.int32).clone() for tensor in tensors]


def same(one, other, what):
    for number, (a, b) in enumerate(zip(one, other, strict=True)):
        assert torch.equal(a, b), f"{what}: tensor {number} differs"


def steps(net, optimizer, first, last, rank=0):
    for step in range(first, last):
        gradients(net, step, rank)
        optimizer.step()


def alone():
    """Every optimizer by itself: two groups, a missing gradient, clipping, parameters that the program changes."""
    for name in OPTIMIZERS:
        ends = []
        for device in ("host", "interpret"):
            net = model()
            optimizer = build(net, name, device, clip=1.0)
            steps(net, optimizer, 0, 3)
            with torch.no_grad():
                net[0].weight.mul_(0.5)
            steps(net, optimizer, 3, 5)
            optimizer.sync()
            ends.append(bits(*net.parameters()))
        same(*ends, name)


def halves():
    """Parameters of 16 bits, whose float32 master is on the device; a scale that GradScaler would have set."""
    for dtype in (torch.bfloat16, torch.float16):
        ends = []
        for device in ("host", "interpret"):
            net = model(dtype)
            optimizer = build(net, "ZeroOneAdam", device)
            optimizer.grad_scale = torch.tensor(3.0)
            steps(net, optimizer, 0, 4)
            ends.append(bits(*net.parameters(), optimizer._flat.values))
        same(*ends, str(dtype))


def states():
    """A state goes from the device to the host and back, in the file of a program and in a checkpoint's folder."""
    whole_net = model()
    whole = build(whole_net, "ZeroOneAdam", "interpret")
    steps(whole_net, whole, 0, 6)
    with tempfile.TemporaryDirectory() as folder:
        net = model()
        optimizer = build(net, "ZeroOneAdam", "interpret")
        steps(net, optimizer, 0, 3)
        optimizer.save(folder)
        state = optimizer.state_dict()
        for device in ("host", "interpret"):
            loaded_net, resumed_net = model(), model()
            loaded = build(loaded_net, "ZeroOneAdam", device)
            loaded.load_state_dict(state)
            resumed = build(resumed_net, "ZeroOneAdam", device, resume=folder)
            for then, continued in ((loaded_net, loaded), (resumed_net, resumed)):
                steps(then, continued, 3, 6)
                same(bits(*whole_net.parameters()), bits(*then.parameters()), f"{device}, {continued is loaded}")


def follows():
    """The schedule is read after the optimizer was built: the worker is made again, on the same device."""
    ends = []
    for device in ("host", "interpret"):
        net = model()
        optimizer = build(net, "OneBitAdam", device)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)
        optimizer.follow(scheduler, steps=8)
        for step in range(4):
            gradients(net, step)
            optimizer.step()
            scheduler.step()
        ends.append(bits(*net.parameters()))
    same(*ends, "follow")


def refuses():
    """What has no kernel is named, with the way on, before anything is sent; what a device computes wrongly is not used."""
    from thinwire.device import formulas, proof

    for more, problem in (({"codec": "topk0.1"}, "codec 'topk0.1' has no kernel"), ({"codec_down": "power3"}, "codec 'power3'")):
        try:
            build(model(), "OneBitAdam", "interpret", **more)
        except NotImplementedError as error:
            assert problem in str(error) and 'device="host"' in str(error), error
        else:
            raise AssertionError(f"{more} was taken")
    many = [{"params": [torch.nn.Parameter(torch.zeros(2))]} for _ in range(9)]
    try:
        thinwire.AdamW(many, device="interpret")
    except NotImplementedError as error:
        assert "expected 1 to 8, found 9" in str(error), error
    else:
        raise AssertionError("nine groups were taken")

    import triton.language as tl

    formulas.NOISE = tl.constexpr(101.0)  # a kernel's limit is another than the engine's
    proof._proved.clear()
    try:
        build(model(), "ZeroOneAdam", "interpret")
    except ValueError as error:
        assert "does not give the engine's bits" in str(error), error
    else:
        raise AssertionError("a device that computes something else was used")


def ranks():
    """Three optimizers on two ranks, one on the device and one on the host, beside both on the host."""
    on_gloo(2, _pairs)


def sharded():
    """FSDP2 inside, Thinwire across: two replicas of two shards, one replica on devices, beside all on hosts."""
    on_gloo(4, _shards)


def on_gloo(size, work):
    """`work(rank)` on as many processes, which meet by a file: no port to be lost to somebody else."""
    with tempfile.TemporaryDirectory() as folder:
        processes.spawn(_rank, args=(size, work, f"file://{folder}/meeting"), nprocs=size)


def _rank(rank, size, work, meeting):
    torch.set_num_threads(1)
    numpy.seterr(all="ignore")
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size)
    work(rank)
    dist.barrier()
    dist.destroy_process_group()


def _pairs(rank):
    for name in ("OneBitAdam", "ZeroOneAdam", "EfficientAdam"):
        ends = []
        for device in ("host", "interpret" if rank == 0 else "host"):
            net = model()
            with torch.no_grad():
                net[0].weight.add_(rank)  # rank 0's are taken
            optimizer = build(net, name, device, init="broadcast", non_finite="skip")
            steps(net, optimizer, 0, 3, rank)
            gradients(net, 3, rank)
            if rank == 1:
                net[0].weight.grad[0, 0] = torch.nan
            optimizer.step()
            with optimizer.consensus():
                common = bits(*net.parameters())
            optimizer.consolidate_state_dict()
            state = optimizer.state_dict()
            steps(net, optimizer, 4, 6, rank)
            optimizer.load_state_dict(state)
            optimizer.sync()
            ends.append([*common, *bits(*net.parameters())])
        same(*ends, f"{name}, rank {rank}")


def _shards(rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("across", "inside"))
    ends = []
    for device in ("host", "interpret" if rank < 2 else "host"):
        net = model()
        fully_shard(net, mesh=mesh["inside"])
        optimizer = thinwire.ZeroOneAdam(
            net.parameters(), lr=0.05, process_group=mesh["across"], clip=1.0, device=device, **OPTIMIZERS["ZeroOneAdam"]
        )
        for step in range(4):
            torch.manual_seed(10 * step + rank)
            optimizer.zero_grad()
            net(torch.randn(4, 6)).square().mean().backward()
            optimizer.step()
        optimizer.sync()
        ends.append(bits(*(param.to_local() for param in net.parameters())))
    same(*ends, f"sharded, rank {rank}")


if __name__ == "__main__":
    numpy.seterr(all="ignore")  # the interpreter computes what a `where` then leaves out
    for name in sys.argv[1:]:
        globals()[name]()
        print(f"{name} is equal", flush=True)
