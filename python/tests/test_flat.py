"""Where parameters and gradients are: views of a vector, or mirrored on a device."""

import copy
import gc
import pickle

import pytest
import torch
from models import bits, tiny_gpt
from torch import nn

import thinwire
from thinwire import _flat, _mirror


def step_of(model, optimizer, step):
    optimizer.zero_grad()
    model.loss(step).backward()
    optimizer.step()


# ---- gradients -------------------------------------------------------------------------------------


def test_gradients_stay_where_backward_put_them():
    model = tiny_gpt()
    optimizer = thinwire.AdamW(model.parameters())
    model.loss(0).backward()
    grads = [(p.grad, p.grad.data_ptr(), p.grad.clone()) for p in model.parameters()]
    optimizer.step()
    for p, (grad, address, values) in zip(model.parameters(), grads, strict=True):
        assert p.grad is grad and grad.data_ptr() == address and torch.equal(grad, values)


def in_columns(grad):
    return grad.t().contiguous().t() if grad.dim() == 2 else grad


def every_other(grad):
    return torch.stack([grad, grad], dim=-1)[..., 0]


def negated(grad):
    return torch._neg_view(-grad)


def misaligned(grad):
    memory = bytearray(grad.numel() * 4 + 1)
    values = torch.frombuffer(memory, dtype=torch.float32, offset=1, count=grad.numel()).view(grad.shape)
    values.copy_(grad)
    return values


class Sub(torch.Tensor):
    pass


def of_a_subclass(grad):
    return grad.as_subclass(Sub)


def made_for_inference(grad):
    with torch.inference_mode():
        return grad.clone()


def sparse(grad):
    return grad.to_sparse() if grad.dim() == 2 else grad


@pytest.mark.parametrize("form", [in_columns, every_other, sparse, negated, misaligned, of_a_subclass, made_for_inference])
def test_gradients_in_other_forms_give_the_same_bits(form):
    ends = []
    for change in (form, torch.clone):
        model = tiny_gpt()
        optimizer = thinwire.ZeroOneAdam(model.parameters(), lr=1e-2)
        for step in range(4):
            optimizer.zero_grad()
            model.loss(step).backward()
            for p in model.parameters():
                p.grad = change(p.grad)
            optimizer.step()
        ends.append(bits(model))
    assert torch.equal(*ends)


def test_a_gradient_may_be_the_parameter_itself():
    """As it is of half its square."""
    ends = []
    for copied in (False, True):
        param = nn.Parameter(torch.linspace(-1, 1, 100))
        optimizer = thinwire.AdamW([param], lr=1e-2)
        for _ in range(3):
            param.grad = param.detach().clone() if copied else param.detach()
            optimizer.step()
        ends.append(param.detach().clone())
    assert torch.equal(*ends)


def test_gradients_that_the_program_keeps_stay():
    """As in methods that compare the gradients of several losses before they step."""
    model = tiny_gpt()
    optimizer = thinwire.AdamW(model.parameters())
    model.loss(0).backward()
    kept = [p.grad for p in model.parameters()]
    copies = [grad.clone() for grad in kept]
    optimizer.zero_grad()
    model.loss(1).backward()
    assert all(torch.equal(a, b) for a, b in zip(kept, copies, strict=True))
    assert not any(torch.equal(p.grad, b) for p, b in zip(model.parameters(), copies, strict=True))
    mine = [p.grad.clone() for p in model.parameters()]
    reference = tiny_gpt()
    other = thinwire.AdamW(reference.parameters())
    for p, grad in zip(reference.parameters(), mine, strict=True):
        p.grad = grad
    optimizer.step()
    other.step()
    assert torch.equal(bits(model), bits(reference))
    assert all(p.grad is grad for p, grad in zip(reference.parameters(), mine, strict=True))  # what is put there stays there


def spoil_in_place(model):
    model.head.weight.grad[0, 0] = float("nan")


def spoil_all(model):
    torch._foreach_mul_([p.grad for p in model.parameters()], float("inf"))


def spoil_by_assignment(model):
    model.head.weight.grad = torch.full_like(model.head.weight, float("inf"))


def spoil_by_accumulation(model):
    (model.loss(1) * float("nan")).backward()


def spoil_under_another_name(model):
    model.head.weight.grad = model.head.weight.grad.detach()
    spoil_by_accumulation(model)


def spoil_from_the_start(model):
    model.zero_grad()
    spoil_by_accumulation(model)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize(
    "spoil", [spoil_in_place, spoil_all, spoil_by_assignment, spoil_by_accumulation, spoil_under_another_name, spoil_from_the_start]
)
def test_whatever_makes_a_gradient_infinite_is_seen_before_anything_moves(spoil, keep):
    """Backward's gradients are looked at as it makes them; what happens to them after that counts too."""
    model = tiny_gpt()
    optimizer = thinwire.AdamW(model.parameters())
    for step in range(2):
        optimizer.zero_grad(set_to_none=not keep)
        model.loss(step).backward()
        optimizer.step()
    optimizer.zero_grad(set_to_none=not keep)
    model.loss(2).backward()
    before = bits(model)
    spoil(model)
    with pytest.raises(FloatingPointError, match="worker 0"):
        optimizer.step()
    assert torch.equal(bits(model), before)


def test_a_gradient_that_was_looked_at_is_not_looked_at_again():
    model = tiny_gpt()
    optimizer = thinwire.AdamW(model.parameters())

    def is_known():
        return optimizer._flat.take_grads().finite

    model.loss(0).backward()
    assert is_known()
    next(model.parameters()).grad.mul_(1)
    assert not is_known()
    model.loss(1).backward()  # on top of it
    assert is_known()
    twin = copy.deepcopy(next(model.parameters()).grad)
    next(model.parameters()).grad = twin
    assert not is_known()


def test_copies_of_a_gradient_are_not_taken_for_it():
    param = nn.Parameter(torch.ones(64))
    optimizer = thinwire.AdamW([param])
    (param * 2).sum().backward()
    assert optimizer._flat.take_grads().finite
    param.grad.fill_(float("nan"))
    for _ in range(100):  # memory comes back
        param.grad = copy.deepcopy(param.grad)
        assert not optimizer._flat.take_grads().finite


def test_a_minus_that_is_still_to_be_done():
    ends = []
    for kind in (thinwire.AdamW, torch.optim.AdamW):
        param = nn.Parameter(torch.tensor([0.5]))
        optimizer = kind([param], lr=1e-2, weight_decay=0.0)
        (torch.complex(torch.ones(1), param).conj() * torch.tensor(2 + 3j)).real.sum().backward()
        optimizer.step()
        ends.append(param.item())
    assert abs(ends[0] - ends[1]) < 1e-6


class HalfSquare(torch.autograd.Function):
    """Its backward gives the parameter itself."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x * x).sum() / 2

    @staticmethod
    def backward(ctx, grad):
        return ctx.saved_tensors[0].detach()  # nobody else holds it: PyTorch makes it the gradient


def test_backward_may_give_the_parameter_itself():
    ends = []
    for own in (True, False):
        param = nn.Parameter(torch.linspace(-1, 1, 100))
        optimizer = thinwire.AdamW([param], lr=1e-2)
        for _ in range(3):
            optimizer.zero_grad()
            (HalfSquare.apply(param) if own else (param * param).sum() / 2).backward()
            optimizer.step()
        ends.append(param.detach().clone())
    assert torch.equal(*ends)


class Nothing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return torch._efficientzerotensor(grad.shape)


def test_a_gradient_without_memory():
    param = nn.Parameter(torch.ones(5))
    optimizer = thinwire.AdamW([param], lr=0.1, weight_decay=0.0)
    Nothing.apply(param).sum().backward()
    optimizer.step()
    assert torch.equal(param.detach(), torch.ones(5))


def test_gradients_that_share_memory_are_scaled_once():
    ends = []
    for scale in (1.0, 1024.0):
        a, b = nn.Parameter(torch.ones(4, 5)), nn.Parameter(torch.ones(20))
        optimizer = thinwire.AdamW([a, b], lr=0.1)
        loss = ((a.view(-1).view(20) + b.view(4, 5).view(20)) ** 2).sum()
        (loss * scale).backward()
        ends.append([grad.clone() for grad in optimizer._flat.take_grads(scale).held])
    assert all(torch.equal(x, y) for x, y in zip(*ends, strict=True))


def test_hooks_go_with_their_optimizer():
    model = tiny_gpt()
    optimizer = thinwire.AdamW(model.parameters())
    assert all(p._post_accumulate_grad_hooks for p in model.parameters())
    del optimizer
    gc.collect()
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())


def test_a_model_can_still_be_copied_and_saved():
    model = tiny_gpt()
    optimizer = thinwire.AdamW(model.parameters())
    step_of(model, optimizer, 0)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(bits(model), bits(twin))
        twin.loss(1).backward()
        before = bits(model)
        with torch.no_grad():
            twin.head.weight.zero_()
        assert torch.equal(bits(model), before)


def test_the_model_outlives_its_optimizer():
    model = tiny_gpt()
    step_of(model, thinwire.AdamW(model.parameters()), 0)
    gc.collect()
    torch.optim.SGD(model.parameters()).zero_grad()
    model.loss(1).backward()
    again = thinwire.AdamW(model.parameters())
    step_of(model, again, 2)
    assert torch.isfinite(bits(model)).all()


# ---- a device --------------------------------------------------------------------------------------


class Elsewhere:
    """A device that is not the host's, as far as the code asks."""

    def __init__(self, number):
        self.type, self.number = "elsewhere", number

    def __eq__(self, other):
        return isinstance(other, Elsewhere) and self.number == other.number

    def __hash__(self):
        return self.number


class OnDevice(nn.Parameter):
    """A parameter that says it is on a device. Only that is pretended: its values are the host's."""

    number = 0

    @property
    def device(self):
        return Elsewhere(self.number)


class OnSecondDevice(OnDevice):
    number = 1


class Stream:
    """Copies to and from the device happen when they are waited for, in order; until then a buffer holds garbage."""

    def __init__(self):
        self.queue, self.waits, self.copies = [], 0, []


@pytest.fixture
def device(monkeypatch):
    stream = Stream()

    def buffer(self, length, device):
        assert device.type == "elsewhere"
        return torch.full((length,), float("nan"))

    def copy(self, to, source):
        stream.copies.append(4 * to.numel())
        if _is_host(self, to):
            snapshot = source.clone()  # what the stream would read when it gets there
            to.fill_(float("nan"))
            stream.queue.append(lambda: to.copy_(snapshot))
        else:
            to.copy_(source)  # kernels behind it on the stream see it

    def wait(self):
        stream.waits += 1
        while stream.queue:
            stream.queue.pop(0)()

    def zeros(count, pinned):
        stream.pinned = pinned
        return torch.zeros(count)

    monkeypatch.setattr(_mirror.Mirror, "_buffer", buffer)
    monkeypatch.setattr(_mirror.Mirror, "_copy", copy)
    monkeypatch.setattr(_mirror.Mirror, "_wait", wait)
    monkeypatch.setattr(_flat, "_zeros", zeros)
    return stream


def _is_host(mirror, tensor):
    storage = tensor.untyped_storage().data_ptr()
    return storage in (mirror._values.untyped_storage().data_ptr(), mirror._grads.untyped_storage().data_ptr())


def params_of(kinds, dtype=torch.float32, seed=0):
    random = torch.Generator().manual_seed(seed)
    return [kind(torch.randn(shape, generator=random).to(dtype)) for kind, shape in kinds]


SHAPES = [(300, 7), (1,), (0, 4), (50, 50), (), (33,)]


def trained(params, steps=8, between=None, **words):
    optimizer = thinwire.ZeroOneAdam(params, lr=0.05, **words)
    for step in range(steps):
        random = torch.Generator().manual_seed(100 + step)
        for index, param in enumerate(params):
            noise = torch.randn(param.shape, generator=random)
            param.grad = None if (index + step) % 5 == 0 else (param.detach().as_subclass(torch.Tensor).float() + noise).to(param.dtype)
        optimizer.step()
        if between is not None and step == 3:
            between(params)
    return torch.cat([p.detach().as_subclass(torch.Tensor).float().flatten() for p in params])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bucket", [_mirror.BUCKET, 8000, 4])
def test_a_device_gives_the_hosts_bits(device, monkeypatch, dtype, bucket):
    """Whatever the buckets, and with parameters of the host and of two devices between each other."""
    monkeypatch.setattr(_mirror, "BUCKET", bucket)

    def halve(params):
        with torch.no_grad():
            params[3].data.mul_(0.5)  # the program's own change

    host = trained(params_of([(nn.Parameter, shape) for shape in SHAPES], dtype), between=halve)
    kinds = [OnDevice, OnDevice, OnSecondDevice, OnDevice, nn.Parameter, OnSecondDevice]
    there = params_of(list(zip(kinds, SHAPES, strict=True)), dtype)
    assert torch.equal(host, trained(there, between=halve))
    assert device.pinned and device.waits > 0 and not device.queue
    assert max(device.copies) <= max(bucket, 4 * 50 * 50)


def test_half_precision_on_a_device_has_a_master(device):
    param = OnDevice(torch.ones(100, dtype=torch.bfloat16))
    optimizer = thinwire.AdamW([param], lr=1e-4, weight_decay=0)
    for _ in range(200):
        param.grad = torch.ones(100, dtype=torch.bfloat16)
        optimizer.step()
    assert param.detach().float().max() < 0.99  # each step is too small for bfloat16


def test_states_and_consensus_on_a_device(device):
    params = params_of([(OnDevice, (40,))])
    optimizer = thinwire.ZeroOneAdam(params, lr=0.1)
    params[0].grad = torch.ones(40)
    optimizer.step()
    state, values = optimizer.state_dict(), params[0].detach().clone()
    optimizer.step()
    optimizer.load_state_dict(state)
    assert torch.equal(params[0].detach(), values)
    with optimizer.consensus():
        pass
    optimizer.sync()
    assert torch.equal(params[0].detach(), values)
    params[0].data.mul_(2)  # the program's own change is in the next state
    assert torch.equal(optimizer.state_dict()["thinwire"]["rank-0-of-1"]["params"], 2 * values)
