"""The optimizers with one worker: what every torch.optim.Optimizer must be able to do."""

import copy
import gc
import logging
import math
import pickle

import pytest
import torch
import torch.distributed as dist
from models import bits, decayed, tiny_gpt
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, get_state_dict, set_optimizer_state_dict
from torch.optim import lr_scheduler

import thinwire

ALL = [
    thinwire.AdamW,
    thinwire.OneBitAdam,
    thinwire.ZeroOneAdam,
    thinwire.EfficientAdam,
    thinwire.LocalAdam,
    thinwire.Lion,
    thinwire.Birder,
]


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def train(model, optimizer, steps, scheduler=None, first=0):
    for step in range(first, first + steps):
        optimizer.zero_grad()
        loss = model.loss(step)
        loss.backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return loss.item()


def apart(a, b):
    return (bits(a) - bits(b)).abs().max().item()


def twins(**words):
    """The same model twice, with our AdamW and with PyTorch's."""
    ours, theirs = tiny_gpt(), tiny_gpt()
    return ours, thinwire.AdamW(ours.parameters(), **words), theirs, torch.optim.AdamW(theirs.parameters(), **words)


def test_one_worker_is_torchs_adamw_over_200_steps():
    ours, mine, theirs, reference = twins(lr=1e-3, weight_decay=0.1)
    first = ours.loss(0).item()
    last = train(ours, mine, 200)
    train(theirs, reference, 200)
    assert last < 0.75 * first
    assert apart(ours, theirs) < 1e-6


@pytest.mark.parametrize("kind", ["lambda", "cosine", "onecycle", "plateau"])
def test_groups_and_schedulers_are_torchs(kind):
    """Also where the groups' learning rates change their ratio on the way."""

    def scheduled(optimizer):
        if kind == "lambda":
            return lr_scheduler.LambdaLR(optimizer, [lambda t: min(1, t / 10), lambda t: 0.95**t])
        if kind == "cosine":
            return lr_scheduler.CosineAnnealingLR(optimizer, 40, 1e-4)
        if kind == "onecycle":
            return lr_scheduler.OneCycleLR(optimizer, [3e-3, 1e-3], total_steps=60, cycle_momentum=False)
        return lr_scheduler.MultiStepLR(optimizer, [10, 20], 0.3)

    ours, theirs = tiny_gpt(), tiny_gpt()
    mine, reference = thinwire.AdamW(decayed(ours, lr=3e-3), lr=1e-3), torch.optim.AdamW(decayed(theirs, lr=3e-3), lr=1e-3)
    train(ours, mine, 50, scheduled(mine))
    train(theirs, reference, 50, scheduled(reference))
    assert apart(ours, theirs) < 1e-6


@pytest.mark.parametrize("kind", ALL)
def test_each_learns(kind):
    model = tiny_gpt()
    optimizer = kind(model.parameters(), lr=3e-3, **({"warmup": 30} if kind is thinwire.OneBitAdam else {}))
    assert isinstance(optimizer, torch.optim.Optimizer)
    first = model.loss(0).item()
    assert train(model, optimizer, 150) < 0.7 * first
    rounds = optimizer.traffic()["rounds"]
    assert sum(rounds.values()) == 150


def test_parameters_are_parts_of_one_vector():
    model = tiny_gpt()
    before = bits(model)
    optimizer = thinwire.AdamW(model.parameters())

    def places():
        return [(p.data_ptr(), p.untyped_storage().data_ptr(), p.untyped_storage().nbytes()) for p in model.parameters()]

    lengths = [4 * p.numel() for p in model.parameters()]
    starts = [places()[0][0] + sum(lengths[:index]) for index in range(len(lengths))]
    expected = list(zip(starts, starts, lengths, strict=True))
    assert places() == expected
    assert torch.equal(before, bits(model))
    train(model, optimizer, 1)
    assert places() == expected


def test_closure_and_its_loss():
    ours, mine, theirs, reference = twins(lr=1e-3)

    def closure(model, optimizer):
        def again():
            optimizer.zero_grad(set_to_none=True)
            loss = model.loss(3)
            loss.backward()
            return loss

        return again

    for _ in range(3):
        assert mine.step(closure(ours, mine)).item() == pytest.approx(reference.step(closure(theirs, reference)).item(), abs=1e-5)
    assert apart(ours, theirs) < 1e-6


def test_accumulation_clipping_and_zeroing():
    ours, mine, theirs, reference = twins(lr=1e-3)
    for model, optimizer in ((ours, mine), (theirs, reference)):
        for step in range(10):
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            for part in range(3):
                (model.loss(10 * step + part) / 3).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
    assert apart(ours, theirs) < 1e-6


def test_frozen_parameters_stay():
    ours, theirs = tiny_gpt(), tiny_gpt()
    for model in (ours, theirs):
        model.tokens.weight.requires_grad_(False)
    start = ours.tokens.weight.clone()
    mine = thinwire.AdamW(ours.parameters(), weight_decay=0.1)
    train(ours, mine, 20)
    train(theirs, torch.optim.AdamW(theirs.parameters(), weight_decay=0.1), 20)
    assert torch.equal(start, ours.tokens.weight)
    assert apart(ours, theirs) < 1e-6
    ours.tokens.weight.requires_grad_(True)
    with pytest.raises(RuntimeError, match="requires_grad of a parameter changed"):
        train(ours, mine, 1)


def test_a_parameter_without_gradient_counts_as_one_of_zeros():
    model, unused = tiny_gpt(), nn.Parameter(torch.ones(5))
    optimizer = thinwire.AdamW([*model.parameters(), unused], lr=0.1, weight_decay=0.5)
    train(model, optimizer, 2)
    assert torch.allclose(unused, torch.full((5,), 0.95**2))


def test_tensors_of_no_values_and_strange_shapes():
    empty, scalar, strided = nn.Parameter(torch.zeros(0, 3)), nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.rand(4, 6).t())
    values = strided.detach().clone()
    optimizer = thinwire.ZeroOneAdam([empty, scalar, strided], lr=0.1)
    assert torch.equal(values, strided)
    (scalar * 2 + (strided * values).sum()).backward()
    optimizer.step()
    assert scalar.item() < 1 and (strided < values).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sparse_gradients_count_as_dense_ones(dtype):
    table = nn.Embedding(10, 4, sparse=True, dtype=dtype)
    before = table.weight.detach().clone()
    optimizer = thinwire.AdamW(table.parameters(), lr=0.1, weight_decay=0)
    for row in (1, 2):
        optimizer.zero_grad()
        table(torch.tensor([row])).sum().backward()
        optimizer.step()
    assert (table.weight != before).any(1).nonzero().flatten().tolist() == [1, 2]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_has_a_master(dtype):
    """A step too small for the type still counts: it adds up in float32."""
    half = nn.Parameter(torch.full((100,), 1.0, dtype=dtype))
    full = nn.Parameter(torch.full((100,), 1.0))
    mine, reference = thinwire.AdamW([half], lr=1e-4, weight_decay=0), torch.optim.AdamW([full], lr=1e-4, weight_decay=0)
    for _ in range(200):
        for param, optimizer in ((half, mine), (full, reference)):
            param.grad = torch.ones_like(param)
            optimizer.step()
    assert half.dtype is dtype
    assert torch.equal(half, full.to(dtype))
    with torch.no_grad():
        half.mul_(2)  # the program's own change counts
    half.grad = torch.zeros_like(half)
    mine.step()
    assert half.float().mean() > 1.9


def test_mixed_types_in_one_model():
    model = tiny_gpt()
    model.block.to(torch.bfloat16)
    half, full = nn.Parameter(torch.ones(3, dtype=torch.bfloat16)), nn.Parameter(torch.ones(3))
    optimizer = thinwire.ZeroOneAdam([half, full], lr=0.1)
    (half.float() * full).sum().backward()
    optimizer.step()
    assert half.dtype is torch.bfloat16 and torch.allclose(half.float(), full, atol=0.01)


def test_memory_given_anew_is_taken_over():
    ours, mine, theirs, reference = twins(lr=1e-3)
    for model, optimizer in ((ours, mine), (theirs, reference)):
        train(model, optimizer, 3)
        with torch.no_grad():
            model.head.weight.data = model.head.weight.data.clone() * 0.5  # as swapping in an average does
            model.norm.weight.mul_(1.5)
        train(model, optimizer, 3)
    assert apart(ours, theirs) < 1e-6
    theirs.load_state_dict(ours.state_dict())
    ours.load_state_dict(tiny_gpt(7).state_dict())
    assert apart(ours, tiny_gpt(7)) == 0
    ours.double()
    with pytest.raises(RuntimeError, match="another type, shape or device"):
        mine.step()


def test_autograd_knows_that_parameters_were_written():
    model = tiny_gpt()
    optimizer = thinwire.AdamW(model.parameters())
    loss = model.loss(0)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_grad_scaler():
    ours, mine, theirs, reference = twins(lr=1e-3)
    for model, optimizer in ((ours, mine), (theirs, reference)):
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=4)
        for step in range(12):
            optimizer.zero_grad()
            loss = model.loss(step)
            if step == 5:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            if step % 2:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        assert scaler.get_scale() == 2.0**11  # both halved it once
    assert mine.traffic()["left_out"] == 1
    # A step that is left out still counts as a step, so the bias correction of the momentum is a step ahead of PyTorch's.
    assert apart(ours, theirs) < 1e-3


@pytest.mark.parametrize("kind", ALL)
def test_a_state_goes_on_bit_for_bit(kind, tmp_path):
    words = {"warmup": 10} if kind is thinwire.OneBitAdam else {}
    whole = tiny_gpt()
    train(whole, kind(decayed(whole), lr=1e-2, **words), 30)
    first = tiny_gpt()
    optimizer = kind(decayed(first), lr=1e-2, **words)
    train(first, optimizer, 15)
    optimizer.param_groups[1]["lr"] = 1e-2
    torch.save(optimizer.state_dict(), tmp_path / "state.pt")
    second = tiny_gpt(5)  # the state has the parameters
    again = kind(decayed(second), lr=0.5, **words)
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert again.param_groups[0]["lr"] == 1e-2
    train(second, again, 15, first=15)
    assert torch.equal(bits(whole), bits(second))


def test_states_that_do_not_fit():
    model = tiny_gpt()
    optimizer = thinwire.AdamW(model.parameters())
    state = optimizer.state_dict()
    with pytest.raises(ValueError, match="not a state of a thinwire optimizer"):
        optimizer.load_state_dict(torch.optim.AdamW(model.parameters()).state_dict())
    other = {**state, "thinwire": {"rank-1-of-4": state["thinwire"]["rank-0-of-1"]}}
    with pytest.raises(ValueError, match="state of rank-1-of-4, and this is rank-0-of-1"):
        optimizer.load_state_dict(other)
    other = thinwire.EfficientAdam(model.parameters(), lr=0.25)
    with pytest.raises(ValueError, match="name was .*adam.* when the state was saved"):
        other.load_state_dict(state)
    assert other.param_groups[0]["lr"] == 0.25, "what is refused changes nothing"
    del state["thinwire"]["rank-0-of-1"]["params"]
    with pytest.raises(ValueError, match="the state has no params"):
        optimizer.load_state_dict(state)


class Wrapped(thinwire.AdamW):
    """As Accelerate does."""

    def state_dict(self):
        return super().state_dict()


def test_helpers_of_checkpoints_take_no_step():
    """``torch.distributed.checkpoint`` has some that take a step to make a state where they see none."""
    model = tiny_gpt()
    optimizer = thinwire.AdamW(model.parameters())
    train(model, optimizer, 2)
    optimizer.zero_grad()
    before = bits(model)
    states = get_optimizer_state_dict(model, optimizer), get_state_dict(model, optimizer)[1]
    assert all(set(state["state"]) == {name for name, _ in model.named_parameters()} for state in states)
    assert torch.equal(bits(model), before)
    assert optimizer.param_groups[0]["lr"] == 1e-3 and all(param.grad is None for param in model.parameters())
    again = Wrapped(model.parameters())
    set_optimizer_state_dict(model, again, states[0])
    for one in (optimizer, again):
        train(model, one, 1)
    ours, theirs = optimizer.state_dict()["thinwire"], again.state_dict()["thinwire"]
    assert ours["rank-0-of-1"]["values"]["step"] == theirs["rank-0-of-1"]["values"]["step"] == 3


def test_a_checkpoint_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere.*: there is no such folder"):
        thinwire.AdamW(tiny_gpt().parameters(), resume=tmp_path / "nowhere")
    with pytest.raises(ValueError, match="expected manifest.json, found none"):
        thinwire.AdamW(tiny_gpt().parameters(), resume=tmp_path)
    with pytest.raises(TypeError, match="resume = 3: accepted"):
        thinwire.AdamW(tiny_gpt().parameters(), resume=3)


def test_a_checkpoint_resumes(tmp_path):
    whole, first, second = tiny_gpt(), tiny_gpt(), tiny_gpt(5)
    train(whole, thinwire.ZeroOneAdam(whole.parameters(), sync_every=4), 20)
    optimizer = thinwire.ZeroOneAdam(first.parameters(), sync_every=4)
    train(first, optimizer, 10)
    optimizer.save(tmp_path)
    train(second, thinwire.ZeroOneAdam(second.parameters(), sync_every=4, resume=tmp_path), 10, first=10)
    assert torch.equal(bits(whole), bits(second))


def test_a_checkpoint_has_its_learning_rates(tmp_path, caplog):
    """A scheduler that goes on from the rate before relies on them: the optimizer's, and the one it began with."""

    def pair(**words):
        optimizer = thinwire.AdamW(tiny_gpt().parameters(), lr=1e-2, **words)
        return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.1)

    def rates(optimizer, scheduler, steps):
        seen = []
        for _ in range(steps):
            seen.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
        return seen

    optimizer, scheduler = pair()
    rates(optimizer, scheduler, 5)
    optimizer.save(tmp_path)
    state = scheduler.state_dict()
    expected = rates(optimizer, scheduler, 5)
    resumed, loaded = pair(resume=tmp_path)
    loaded.load_state_dict(state)
    assert rates(resumed, loaded, 5) == expected
    assert resumed.param_groups[0]["initial_lr"] == 1e-2
    (tmp_path / "learning-rates.json").unlink()
    with caplog.at_level("WARNING", "thinwire"):
        assert pair(resume=tmp_path)[0].param_groups[0]["lr"] == 1e-2
    assert "has no learning rates of its step 5" in caplog.text


def test_nothing_moves_inside_a_consensus_also_where_nothing_is_to_be_averaged():
    optimizer = thinwire.AdamW(tiny_gpt().parameters())
    with optimizer.consensus():
        with optimizer.consensus():
            pass
        for moves in (optimizer.step, optimizer.sync):
            with pytest.raises(RuntimeError, match="inside consensus"):
                moves()
    optimizer.step()


def test_what_is_refused():
    model = tiny_gpt()
    optimizer = thinwire.AdamW(model.parameters())
    with pytest.raises(TypeError, match="schedule is a str; accepted: a dict"):
        optimizer.plan(10, "cosine")
    with pytest.raises(RuntimeError, match="cannot be added after the optimizer was built"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    for way in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot be copied or pickled"):
            way(optimizer)
    optimizer.param_groups[0]["betas"] = (0.8, 0.999)
    with pytest.raises(ValueError, match="betas was .* cycle_momentum=False"):
        optimizer.step()
    for words, complaint in [
        ({"kappa": 3}, "not an option of adam"),
        ({"init": "guess"}, "init"),
        ({"groups": []}, "param_groups"),
        ({"betas": (0.9, 1.5)}, "betas"),
        ({"colour": 1}, "colour: there is no such word"),
        ({"process_group": object()}, "not initialised"),
        ({"amsgrad": True}, "amsgrad = True: torch.optim.AdamW has it"),
        ({"block": "x"}, 'string "x", expected a whole number'),
        ({"lr": -1.0}, "lr = -1.0: accepted"),
        ({"deadline": 0}, "deadline = 0: accepted"),
    ]:
        with pytest.raises(ValueError, match=complaint):
            thinwire.AdamW(tiny_gpt().parameters(), **words)
    with pytest.raises(ValueError, match="float64; accepted"):
        thinwire.AdamW([nn.Parameter(torch.ones(2, dtype=torch.float64))])
    tied = torch.ones(2)
    with pytest.raises(ValueError, match="parameters 0 and 1 share memory"):
        thinwire.AdamW([nn.Parameter(tied), nn.Parameter(tied)])
    with pytest.raises(ValueError, match="betas .* must be the same in all param groups"):
        thinwire.AdamW(decayed(tiny_gpt(), betas=(0.5, 0.5)))
    for word, value in [("codec", "f32"), ("deadline", 3.0)]:
        with pytest.raises(ValueError, match=f"{word} is the whole optimizer's"):
            thinwire.AdamW([{"params": tiny_gpt().parameters(), word: value}])
    with pytest.raises(ValueError, match="meta device"):
        thinwire.AdamW(nn.Linear(2, 2, device="meta").parameters())
    optimizer = thinwire.AdamW(tiny_gpt().parameters())
    optimizer.param_groups[0]["lr"] = -1.0
    with pytest.raises(ValueError, match="lr = -1"):
        optimizer.step()


def test_a_gradient_that_is_not_finite():
    model = tiny_gpt()
    optimizer = thinwire.AdamW(model.parameters())
    model.loss(0).backward()
    model.head.weight.grad[0, 0] = float("nan")
    with pytest.raises(FloatingPointError, match="worker 0 has a gradient"):
        optimizer.step()


def test_plan_traffic_and_log(caplog, capfd):
    model = tiny_gpt()
    with caplog.at_level(logging.INFO, "thinwire"):
        optimizer = thinwire.ZeroOneAdam(model.parameters(), sync_every=4)
    assert "zero-one-adam of" in caplog.text
    train(model, optimizer, 20)
    assert optimizer.plan(20)["rounds"] == optimizer.traffic()["rounds"]
    cosine = {"peak": 1e-3, "warmup": 100, "decay": "cosine", "steps": 10_000}
    follows = thinwire.ZeroOneAdam(tiny_gpt().parameters(), learning_rate=cosine)
    assert follows.plan(10_000) == thinwire.ZeroOneAdam(tiny_gpt().parameters()).plan(10_000, cosine)
    assert follows.plan(10_000)["rounds"]["skipped"] > 1000
    with optimizer.consensus():
        model.loss(0)
    optimizer.sync()
    assert capfd.readouterr() == ("", "")


def test_a_gradient_that_is_left_out_is_logged_but_not_a_scalers(caplog):
    model = tiny_gpt()
    optimizer = thinwire.AdamW(model.parameters(), non_finite="skip")
    for step in range(5):
        optimizer.zero_grad()
        (model.loss(step) * (float("inf") if step in (2, 3) else 1.0)).backward()
        optimizer.step()
    assert [record.getMessage() for record in caplog.records] == [
        "step 2: the gradient of worker 0 is infinite or NaN and is left out of the mean; so far in 1 of its steps"
    ]
    caplog.clear()
    optimizer = thinwire.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model.loss(0) * float("inf")).backward()
    scaler.step(optimizer)
    assert optimizer.traffic()["left_out"] == 1 and not caplog.records, "there it is ordinary"


@pytest.fixture
def alone_in_a_group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    gc.collect()
    dist.destroy_process_group()


TOKENS = torch.zeros(2, 8, dtype=torch.long)


def test_ddp_is_found(alone_in_a_group, caplog):
    wrapped = nn.parallel.DistributedDataParallel(tiny_gpt())
    optimizer = thinwire.AdamW(wrapped.module.parameters())
    assert "train the bare module" in caplog.text
    with wrapped.no_sync():
        wrapped(TOKENS).sum().backward()
    optimizer.step()  # that backward did not average
    with torch.no_grad():
        wrapped(TOKENS)  # an evaluation averages nothing
    optimizer.step()
    wrapped(TOKENS)  # nor does a forward without a backward
    optimizer.step()
    wrapped(TOKENS).sum().backward()
    with pytest.raises(RuntimeError, match="no_sync"):
        optimizer.step()
    optimizer.zero_grad()
    with wrapped.no_sync():
        wrapped(TOKENS).sum().backward()
    optimizer.step()


def test_after_ddp_the_bare_module_is_welcome(alone_in_a_group):
    """As the advice has it."""
    wrapped = nn.parallel.DistributedDataParallel(tiny_gpt())
    optimizer = thinwire.AdamW(wrapped.parameters())
    wrapped(TOKENS).sum().backward()
    with pytest.raises(RuntimeError, match="no_sync"):
        optimizer.step()
    optimizer.zero_grad()
    wrapped.module(TOKENS).sum().backward()
    optimizer.step()
    loss = wrapped(TOKENS).sum()
    optimizer.zero_grad()  # between forward and backward
    loss.backward()
    with pytest.raises(RuntimeError, match="no_sync"):
        optimizer.step()


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_ddp_is_found_whenever_it_comes(alone_in_a_group, steps):
    """As with Trainer, after the optimizer."""
    model = tiny_gpt()
    optimizer = thinwire.AdamW(model.parameters())
    for step in range(steps):
        model.loss(step).backward()
        optimizer.step()
    optimizer.zero_grad()
    wrapped = nn.parallel.DistributedDataParallel(model)
    with wrapped.no_sync():
        wrapped(TOKENS).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    wrapped(TOKENS).sum().backward()
    with pytest.raises(RuntimeError, match="no_sync"):
        optimizer.step()


def test_one_averaged_gradient_among_several_is_enough(alone_in_a_group):
    wrapped = nn.parallel.DistributedDataParallel(tiny_gpt())
    optimizer = thinwire.AdamW(wrapped.parameters())
    wrapped(TOKENS).sum().backward()
    with wrapped.no_sync():
        wrapped(TOKENS).sum().backward()
    with pytest.raises(RuntimeError, match="no_sync"):
        optimizer.step()


def test_processes_that_would_each_train_alone_are_told(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(RuntimeError, match="one of 4 processes.*init_process_group"):
        thinwire.AdamW(tiny_gpt().parameters())


def test_a_rate_that_is_not_the_schedules_is_told_once(caplog):
    schedule = {"peak": 1e-2, "warmup": 4, "decay": "cosine", "steps": 20}
    for follows, expected in ((True, 0), (False, 1)):
        model = tiny_gpt()
        optimizer = thinwire.ZeroOneAdam(model.parameters(), lr=1e-2, learning_rate=schedule)
        shape = (lambda t: min((t + 1) / 4, 0.5 + 0.5 * math.cos(math.pi * max(0, t - 4) / 16))) if follows else (lambda t: 1.0)
        cosine = lr_scheduler.LambdaLR(optimizer, shape)
        caplog.clear()
        for step in range(20):
            optimizer.zero_grad()
            model.loss(step).backward()
            optimizer.step()
            cosine.step()
        assert caplog.text.count("the schedule says") == expected, follows


def test_alone_one_goes_on_after_a_bad_gradient():
    model = tiny_gpt()
    optimizer = thinwire.AdamW(model.parameters())
    (model.loss(0) * float("nan")).backward()
    with pytest.raises(FloatingPointError, match=r'nothing has moved: call zero_grad\(\) and go on. non_finite="skip"'):
        optimizer.step()
    optimizer.zero_grad()
    model.loss(0).backward()
    optimizer.step()


@pytest.mark.parametrize("when", [-1, 0, 2])
def test_memory_that_other_processes_share_stays_theirs(when):
    """As torch.multiprocessing makes it: from before the optimizer was built, or later."""
    ends = []
    for shared in (False, True):
        model = tiny_gpt()
        if shared and when < 0:
            model.share_memory()
        optimizer = thinwire.AdamW(model.parameters(), lr=1e-2)
        for step in range(4):
            if shared and step == when:
                model.share_memory()
                seen = {name: value.data_ptr() for name, value in model.state_dict().items()}
            optimizer.zero_grad()
            model.loss(step).backward()
            optimizer.step()
        if shared:
            assert all(param.is_shared() for param in model.parameters())
            assert when < 0 or seen == {name: value.data_ptr() for name, value in model.state_dict().items()}
        ends.append(bits(model).clone())
    assert torch.equal(*ends)
