"""The optimizers on torch.distributed: 1, 2 and 4 processes on gloo."""

import atexit
import gc
import json
import os
import subprocess
import sys
import time

import numpy
import pytest
import ranks
import torch
import torch.distributed as dist
from engine import gradient, together, train
from models import bits, decayed, tiny_gpt
from torch import nn
from torch.distributed import checkpoint

import thinwire
from thinwire import _thinwire
from thinwire._wire import Wire

WORDS = {
    "AdamW": {},
    "OneBitAdam": {"warmup": 5},
    "ZeroOneAdam": {"sync_every": 4, "variance_gap": 8},
    "EfficientAdam": {},
    "LocalAdam": {"sync_every": 4},
    "Lion": {},
    "Birder": {"seed": 3},
}
REPLAY = os.environ.get("THINWIRE_REPLAY")  # crates/thinwire/examples/replay.rs, built with the feature mpi


def build(kind, params, **words):
    return getattr(thinwire, kind)(params, **{"lr": 1e-2, **WORDS[kind], **words})


def steps(model, optimizer, count, rank, first=0):
    """Every rank has batches of its own."""
    for step in range(first, first + count):
        optimizer.zero_grad()
        model.loss(100 * step + rank).backward()
        optimizer.step()


def trained(rank, kind, count, **words):
    model = tiny_gpt()
    optimizer = build(kind, model.parameters(), **words)
    steps(model, optimizer, count, rank)
    return model, optimizer


# ---- the same bits as the engine's threads ---------------------------------------------------------


def fed(rank, kind, d, count):
    """Parameters after steps on given gradients, cut into tensors of odd shapes."""
    from engine import start

    values = torch.from_numpy(start(d))
    params = [nn.Parameter(part.clone()) for part in values.split([1, 7, d - 8])]
    optimizer = build(kind, params, lr=0.05)
    for step in range(count):
        flat = torch.cat([p.detach() for p in params]).numpy()
        parts = torch.from_numpy(gradient(flat, rank, step)).split([1, 7, d - 8])
        for param, part in zip(params, parts, strict=True):
            param.grad = part.clone()
        optimizer.step()
    return torch.cat([p.detach() for p in params]).numpy(), optimizer.traffic()


@pytest.mark.parametrize("kind", WORDS)
@pytest.mark.parametrize("n", [1, 2, 4])
def test_the_same_bits_as_threads(kind, n):
    def work(end):
        params, worker = train(end, getattr(thinwire, kind)._name, d=5000, steps=14, weight_decay=0.01, **WORDS[kind])
        return params, worker.traffic()

    for (ours, sent), (theirs, expected) in zip(ranks.run(n, fed, kind, 5000, 14), together(n, work), strict=True):
        assert (ours == theirs).all()
        assert sent["bytes_sent"] == expected["bytes_sent"] and sent["rounds"] == expected["rounds"]


def means(end):
    """Coarse means of a vector by themselves, one after the other, and what was sent."""
    mean = _thinwire.Mean(5000, end)
    vectors = [gradient(numpy.zeros(5000, numpy.float32), end.rank, step) for step in range(60)]
    for vector in vectors:
        mean.take(vector)
    return numpy.stack(vectors), mean.traffic()


def means_on_gloo(rank):
    return means(_thinwire.wire_group(Wire(dist.group.WORLD, 60.0), 60.0))


@pytest.mark.parametrize("n", [1, 2, 4])
def test_means_by_themselves(n):
    own = [[gradient(numpy.zeros(5000, numpy.float32), rank, step) for step in range(60)] for rank in range(n)]
    exact = numpy.mean(own, axis=0)
    for (ours, sent), (theirs, expected) in zip(ranks.run(n, means_on_gloo), together(n, means), strict=True):
        assert (ours == theirs).all() and sent["bytes_sent"] == expected["bytes_sent"]
        assert len(numpy.unique(numpy.abs(ours[0][:512]))) == 1  # a scale and signs
        assert numpy.abs(ours.mean(0) - exact.mean(0)).mean() < 0.1 * numpy.abs(ours - exact).mean()  # the residues make up for it


def test_a_mean_of_the_wrong_length_is_refused():
    with pytest.raises(ValueError, match="5"):
        _thinwire.Mean(5, thinwire.local_group(1)[0]).take(numpy.zeros(6, numpy.float32))
    with pytest.raises(ValueError, match="block = 0"):
        _thinwire.Mean(5, thinwire.local_group(1)[0], block=0)
    with pytest.raises(ValueError, match="no-codec"):
        _thinwire.Mean(5, thinwire.local_group(1)[0], codec="no-codec")


def recorded(rank, kind, folder):
    """Trains a network and writes down the gradients on the way."""
    model = tiny_gpt()
    optimizer = build(kind, model.parameters())
    if rank == 0:
        bits(model).numpy().tofile(folder / "start")
        (folder / "config.json").write_text(json.dumps(optimizer._worker.config))
    with open(folder / f"gradients-{rank}", "wb") as file:
        for step in range(14):
            optimizer.zero_grad()
            model.loss(100 * step + rank).backward()
            torch.cat([p.grad.flatten() for p in model.parameters()]).numpy().tofile(file)
            optimizer.step()
    return bits(model).numpy()


@pytest.mark.parametrize("kind", WORDS)
def test_torch_threads_and_mpi_give_the_same_bits(kind, tmp_path):
    """Four ranks on gloo train a network; four threads and four MPI processes take the same gradients."""
    on_torch = ranks.run(4, recorded, kind, tmp_path)
    first = numpy.fromfile(tmp_path / "start", numpy.float32)
    config = json.loads((tmp_path / "config.json").read_text())

    def replayed(end):
        params = first.copy()
        worker = thinwire.Worker(parameters=params, group=end, **config)
        for grad in numpy.fromfile(tmp_path / f"gradients-{end.rank}", numpy.float32).reshape(14, -1):
            worker.step(params, grad, 1e-2)
        return params

    on_threads = together(4, replayed)
    assert all((a == b).all() for a, b in zip(on_torch, on_threads, strict=True))
    assert (on_torch[0] != first).any()
    if not REPLAY:
        pytest.skip("MPI: THINWIRE_REPLAY names no example `replay` of the engine; threads have the same bits")
    command = ["mpirun", "--oversubscribe", "--allow-run-as-root", "-np", "4", REPLAY, str(tmp_path), "1e-2"]
    subprocess.run(command, check=True, timeout=ranks.PATIENCE, stdin=subprocess.DEVNULL)
    on_mpi = [numpy.fromfile(tmp_path / f"end-{rank}", numpy.float32) for rank in range(4)]
    assert all((a == b).all() for a, b in zip(on_torch, on_mpi, strict=True))


def many_buckets(rank):
    """Messages in many pieces, and a greeting longer than a frame."""
    torch.manual_seed(0)
    param = nn.Parameter(torch.randn(50_000))
    optimizer = thinwire.ZeroOneAdam([param], bucket=4096, variance_steps=list(range(20_000)), sync="every", exact_codec="f32")
    param.grad = torch.full_like(param, rank + 1.0)
    for _ in range(3):
        optimizer.step()
    return param.detach().numpy()


def test_messages_of_any_length():
    ends = ranks.run(3, many_buckets)
    assert all((end == ends[0]).all() for end in ends)


# ---- training --------------------------------------------------------------------------------------


def learns(rank, kind):
    model, optimizer = trained(rank, kind, 60)
    optimizer.sync()
    return bits(model).numpy(), model.loss(7).item(), optimizer.plan(60)["rounds"], optimizer.traffic()["rounds"]


@pytest.mark.parametrize("kind", WORDS)
def test_ranks_learn_together(kind):
    ends = ranks.run(2, learns, kind)
    assert (ends[0][0] == ends[1][0]).all()
    assert ends[0][1] < 0.75 * tiny_gpt().loss(7).item()


def groups_of_their_own_rates(rank):
    model = tiny_gpt()
    optimizer = thinwire.AdamW(decayed(model, lr=3e-3), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda t: 0.9**t, lambda t: min(1, t / 5)])
    for step in range(10):
        optimizer.zero_grad()
        model.loss(step).backward()  # all ranks the same data: it is the one-worker run
        optimizer.step()
        schedule.step()
    return bits(model).numpy()


def test_groups_with_rates_that_part():
    alone = ranks.run(1, groups_of_their_own_rates)[0]
    for end in ranks.run(2, groups_of_their_own_rates):
        assert numpy.abs(end - alone).max() < 1e-6


def half_precision(rank):
    torch.manual_seed(0)
    params = [nn.Parameter(torch.randn(300).to(dtype)) for dtype in (torch.bfloat16, torch.float16, torch.float32)]
    optimizer = thinwire.ZeroOneAdam(params, lr=0.01, sync_every=3)
    for _ in range(11):
        for param in params:
            param.grad = param.detach() * (rank + 1)
        optimizer.step()
    optimizer.sync()
    return [p.detach().float().numpy() for p in params]


def test_half_precision_replicas_are_equal():
    one, two = ranks.run(2, half_precision)
    assert all((a == b).all() for a, b in zip(one, two, strict=True))


def scaled(rank):
    model = tiny_gpt()
    optimizer = thinwire.ZeroOneAdam(model.parameters(), lr=1e-3, sync_every=2)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(12):
        optimizer.zero_grad()
        loss = model.loss(100 * step + rank)
        scaler.scale(loss * float("inf") if (rank, step) in ((1, 3), (0, 8)) else loss).backward()
        scaler.step(optimizer)
        scaler.update()
    optimizer.sync()
    return bits(model).numpy(), optimizer.traffic()["left_out"]


def test_grad_scaler_with_infinity_on_one_rank():
    """The others go on; nobody waits for the one that has nothing to say."""
    (one, left_out), (two, left_out_too) = ranks.run(2, scaled)
    assert (one == two).all() and numpy.isfinite(one).all()
    assert left_out == left_out_too == 1


def in_consensus(rank, look):
    model, optimizer = trained(rank, "ZeroOneAdam", 18)
    own, seen = bits(model), None
    if look:
        with optimizer.consensus():
            seen = bits(model).numpy()
        assert torch.equal(own, bits(model))
    steps(model, optimizer, 10, rank, first=18)
    return own.numpy(), seen, bits(model).numpy()


def test_consensus_leaves_the_training_alone():
    ends, undisturbed = ranks.run(2, in_consensus, True), ranks.run(2, in_consensus, False)
    assert (ends[0][0] != ends[1][0]).any(), "the test should look between two syncs"
    assert (ends[0][1] == ends[1][1]).all()
    assert numpy.abs(ends[0][1] - (ends[0][0] + ends[1][0]) / 2).max() < 1e-6
    assert all((a[2] == b[2]).all() for a, b in zip(ends, undisturbed, strict=True))


def saved_in_consensus(rank, folder):
    """Whether training goes on to the bit from what was saved inside, by `save` and by `state_dict`."""
    whole, _ = trained(rank, "ZeroOneAdam", 28)
    model, optimizer = trained(rank, "ZeroOneAdam", 18)
    with optimizer.consensus():
        seen = bits(model)
        optimizer.save(folder)
        state = optimizer.state_dict()
        for forbidden in (optimizer.step, optimizer.sync, lambda: optimizer.load_state_dict(state)):
            with pytest.raises(RuntimeError, match="inside consensus"):
                forbidden()
        with optimizer.consensus():
            assert torch.equal(seen, bits(model))
        assert torch.equal(seen, bits(model))
    resumed, loaded = tiny_gpt(seed=rank), tiny_gpt()
    steps(resumed, build("ZeroOneAdam", resumed.parameters(), resume=folder), 10, rank, first=18)
    again = build("ZeroOneAdam", loaded.parameters())
    again.load_state_dict(state)
    steps(loaded, again, 10, rank, first=18)
    steps(model, optimizer, 10, rank, first=18)
    return [bool(torch.equal(bits(whole), bits(other))) for other in (resumed, loaded, model)]


def test_what_is_saved_in_consensus_is_the_training(tmp_path):
    assert ranks.run(2, saved_in_consensus, str(tmp_path)) == [[True] * 3] * 2


def no_sync(rank, wrap):
    model = tiny_gpt()
    if not wrap:
        optimizer = thinwire.AdamW(model.parameters())
        steps(model, optimizer, 5, rank)
    else:
        wrapped = nn.parallel.DistributedDataParallel(model)
        with wrapped.no_sync():
            optimizer = thinwire.AdamW(wrapped.parameters())
            steps(model, optimizer, 5, rank)
    return bits(model).numpy()


def test_ddp_in_no_sync_is_the_bare_module():
    for bare, wrapped in zip(ranks.run(2, no_sync, False), ranks.run(2, no_sync, True), strict=True):
        assert (bare == wrapped).all()


def one_cannot_build(rank):
    told = []
    for odd in (0, 1, None):
        try:
            thinwire.AdamW(tiny_gpt().parameters(), deadline=20, **({"codec": "nonsense"} if rank == odd else {}))
            told.append("built")
        except ValueError as error:
            told.append(str(error))
    return told


def test_who_cannot_build_its_optimizer_tells_the_others_and_all_may_try_again():
    ends = ranks.run(3, one_cannot_build)
    for rank, told in enumerate(ends):
        for odd in (0, 1):
            assert "nonsense" in told[odd] and "line 1" not in told[odd]
            assert ("worker" in told[odd]) == (rank != odd), told
        assert told[2] == "built"


def some_of_the_ranks(rank):
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    model = tiny_gpt(seed=rank // 2)
    optimizer = thinwire.ZeroOneAdam(model.parameters(), process_group=groups[rank // 2], lr=1e-2)
    steps(model, optimizer, 5, rank)
    with pytest.raises(ValueError, match="not in it"):
        thinwire.AdamW(model.parameters(), process_group=groups[1 - rank // 2])
    dist.barrier()  # rank 0 keeps the store
    return bits(model).numpy()


def test_groups_of_some_ranks():
    a, b, c, d = ranks.run(4, some_of_the_ranks)
    assert (a == b).all() and (c == d).all() and (a != c).any()


def beside_other_messages(rank):
    """The program's own messages on the same group are under way all the time."""
    model = tiny_gpt()
    optimizer = build("AdamW", model.parameters())
    for step in range(10):
        mine, theirs = torch.full((64,), float(step)), torch.zeros(64)
        under_way = [dist.isend(mine, 1 - rank), dist.irecv(theirs, 1 - rank)]
        steps(model, optimizer, 1, rank, first=step)
        [work.wait() for work in under_way]
        assert torch.equal(mine, theirs)
    return bits(model).numpy()


def test_messages_do_not_mix_with_the_programs_own():
    one, two = ranks.run(2, beside_other_messages)
    assert (one == two).all()


def two_at_once(rank):
    """As a generator and a discriminator have them."""
    one, two = tiny_gpt(1), tiny_gpt(2)
    first, second = build("ZeroOneAdam", one.parameters()), build("OneBitAdam", two.parameters())
    for step in range(8):
        steps(one, first, 1, rank, first=step)
        steps(two, second, 1, rank, first=step)
    first.sync()
    return bits(one).numpy(), bits(two).numpy()


def test_two_optimizers_do_not_mix():
    (a, b), (c, d) = ranks.run(2, two_at_once)
    assert (a == c).all() and (b == d).all()


# ---- starting --------------------------------------------------------------------------------------


def differing(rank, init):
    model = tiny_gpt(seed=rank)
    optimizer = thinwire.AdamW(model.parameters(), init=init)
    return bits(model).numpy(), optimizer


def test_initial_parameters_that_differ_are_refused():
    for error in ranks.run(2, differing, "check", allowed=[ValueError]):
        assert isinstance(error, ValueError) and 'init="broadcast"' in str(error)


def broadcast(rank):
    model = tiny_gpt(seed=rank)
    thinwire.AdamW(model.parameters(), init="broadcast")
    return bits(model).numpy()


def test_initial_parameters_are_rank_0s():
    for end in ranks.run(4, broadcast):
        assert (end == bits(tiny_gpt(0)).numpy()).all()


def other_words(rank):
    thinwire.AdamW(tiny_gpt().parameters(), weight_decay=0.1 * rank)


def test_words_that_differ_are_named():
    for error in ranks.run(2, other_words, allowed=[ValueError, RuntimeError]):
        assert "weight_decay" in str(error)


def other_rate(rank, kind, words):
    model = tiny_gpt()
    optimizer = build(kind, model.parameters(), **words)
    steps(model, optimizer, 20, rank)
    optimizer.param_groups[0]["lr"] = 1e-4 if rank else 1e-2
    steps(model, optimizer, 20, rank, first=20)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("AdamW", {}),
        # With another rate another schedule: one rank skips where the other syncs.
        ("ZeroOneAdam", {"sync_every": None, "learning_rate": {"peak": 1e-2}, "freeze": 3}),
    ],
)
def test_a_rate_that_differs_is_found(kind, words):
    for error in ranks.run(2, other_rate, kind, words, allowed=[ValueError, RuntimeError, ConnectionError]):
        assert "disagrees on" in str(error), error


# ---- states ----------------------------------------------------------------------------------------


def halves(rank, kind, folder, way):
    first, optimizer = trained(rank, kind, 10)
    state = optimizer.state_dict()
    if way == "files":
        torch.save(state, f"{folder}/{rank}.pt")
    else:
        checkpoint.save({"optimizer": state}, checkpoint_id=folder)
    second = tiny_gpt(seed=9)
    again = build(kind, second.parameters(), init="broadcast")
    if way == "files":
        again.load_state_dict(torch.load(f"{folder}/{rank}.pt", weights_only=True))
    else:
        state = {"optimizer": again.state_dict()}
        checkpoint.load(state, checkpoint_id=folder)
        again.load_state_dict(state["optimizer"])
    steps(second, again, 10, rank, first=10)
    whole, _ = trained(rank, kind, 20)
    return bool(torch.equal(bits(whole), bits(second)))


@pytest.mark.parametrize("way", ["files", "distributed checkpoint"])
@pytest.mark.parametrize("kind", WORDS)
def test_states_go_on_bit_for_bit(kind, way, tmp_path):
    assert ranks.run(2, halves, kind, str(tmp_path), way) == [True, True]


def swapped(rank):
    _, optimizer = trained(rank, "ZeroOneAdam", 5)
    states = [None, None]
    dist.all_gather_object(states, optimizer.state_dict())
    optimizer.load_state_dict(states[1 - rank])


def test_another_ranks_state_is_refused():
    for rank, error in enumerate(ranks.run(2, swapped, allowed=[ValueError])):
        assert f"this is rank-{rank}-of-2" in str(error)


def swap(state):
    state["thinwire"] = {"rank-0-of-2": state["thinwire"]["rank-1-of-2"]}


def lose_groups(state):
    state["param_groups"] = []


def change_betas(state):
    state["param_groups"][0]["betas"] = (0.8, 0.9)


def lose_all(state):
    state["thinwire"] = {"rank-1-of-2": None}


def one_is_wrong(rank, spoil):
    model, optimizer = trained(rank, "ZeroOneAdam", 5)
    _, other = trained(rank, "ZeroOneAdam", 6)
    state, before = other.state_dict(), bits(model)
    if rank == 1:
        spoil(state)
    try:
        optimizer.load_state_dict(state)
        error = None
    except Exception as refused:
        error = refused
    assert torch.equal(bits(model), before)
    steps(model, optimizer, 1, rank, first=5)  # as if nothing had happened
    return str(error)


@pytest.mark.parametrize("spoil", [swap, lose_groups, change_betas, lose_all])
def test_a_state_that_one_rank_refuses_is_loaded_by_none(spoil):
    first, second = ranks.run(2, one_is_wrong, spoil)
    assert first.startswith("worker 1 could not load its state, so none has: ") and second in first


def long_notes(rank):
    _, optimizer = trained(rank, "AdamW", 1)
    notes = optimizer._worker.gather(bytes([rank]) * 1_000_000)
    return [(set(note), len(note)) for note in notes]


def test_notes_may_be_longer_than_all_buffers():
    assert ranks.run(2, long_notes) == [[({0}, 1_000_000), ({1}, 1_000_000)]] * 2


def with_children(rank):
    """Processes that are forked have the parent's connections, and end; one has an optimizer that is collected there."""
    model, optimizer = trained(rank, "ZeroOneAdam", 2)
    old = trained(rank, "ZeroOneAdam", 2)
    for leaves in (lambda: sys.exit(0), lambda: os._exit(0)):
        child = os.fork()
        if child == 0:
            try:
                old = None
                gc.collect()
                atexit._run_exitfuncs()
                leaves()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
    del old
    steps(model, optimizer, 2, rank, first=2)
    return bits(model).tolist()


def test_forked_children_leave_the_connections_alone():
    first, second = ranks.run(2, with_children)
    assert first == second


def held():
    """Files and threads of this process."""
    return [len(os.listdir(f"/proc/self/{what}")) for what in ("fd", "task")]


def made_and_deleted(rank, kind):
    trained(rank, kind, 2)
    gc.collect()
    dist.barrier()
    before = held()
    for _ in range(3):
        trained(rank, kind, 2)
        gc.collect()
    dist.barrier()
    give_up = time.monotonic() + 10  # a thread that has ended may still be seen
    while held() != before and time.monotonic() < give_up:
        time.sleep(0.05)
    return before, held()


def test_optimizers_that_are_deleted_make_room_for_the_next():
    for before, after in ranks.run(2, made_and_deleted, "ZeroOneAdam"):
        assert after == before


def saved(rank, folder):
    _, optimizer = trained(rank, "ZeroOneAdam", 10)
    optimizer.save(folder)


def resumed(rank, folder):
    model = tiny_gpt(seed=rank)  # the checkpoint has the parameters
    optimizer = build("ZeroOneAdam", model.parameters(), resume=folder)
    steps(model, optimizer, 10, rank, first=10)
    optimizer.sync()
    return bits(model).numpy()


def test_a_checkpoint_goes_on_with_another_number_of_ranks(tmp_path):
    ranks.run(2, saved, str(tmp_path))
    for n in (1, 4):
        ends = ranks.run(n, resumed, str(tmp_path))
        assert all((end == ends[0]).all() for end in ends)
