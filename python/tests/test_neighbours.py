"""What programs do beside the optimizer: save parts of the model, wrap it in DDP with a no-op hook, train under Lightning's precision."""

import copy
import io
import logging

import pytest
import ranks
import torch
from models import bits, tiny_gpt
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

import thinwire


def trained(steps=2, **words):
    model = tiny_gpt()
    optimizer = thinwire.ZeroOneAdam(model.parameters(), lr=1e-2, **words)
    for step in range(steps):
        optimizer.zero_grad()
        model.loss(step).backward()
        optimizer.step()
    return model, optimizer


def written(value):
    file = io.BytesIO()
    torch.save(value, file)
    return file


# ---- saving ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("big", [False, True])
def test_a_part_of_the_model_is_saved_without_the_rest(big):
    """Its parameters are in one vector with all others, of which torch.save would write the whole if they were views of it."""
    model = nn.Sequential(nn.Linear(1000, 1000 if big else 10), nn.LayerNorm(8))  # a big vector has memory of its own kind
    thinwire.AdamW(model.parameters()).step()
    alone = copy.deepcopy(model[1])
    for of in (lambda part: part.state_dict(), lambda part: part, lambda part: part.weight):
        assert written(of(model[1])).tell() == pytest.approx(written(of(alone)).tell(), abs=64)
    again = nn.LayerNorm(8)
    again.load_state_dict(torch.load(io.BytesIO(written(model[1].state_dict()).getvalue()), weights_only=True))
    assert torch.equal(bits(again), bits(model[1]))


def test_a_state_dict_still_is_the_model():
    """Its tensors are the parameters, as PyTorch has it: what is written to one is in the other."""
    model, optimizer = trained()
    with torch.no_grad():
        model.state_dict()["head.weight"].fill_(0.5)
    assert model.head.weight.eq(0.5).all()
    optimizer.step()
    assert model.head.weight.ne(0.0).all() and model.head.weight.sub(0.5).abs().max() < 0.1


def test_a_parameter_outlives_the_optimizer():
    model, optimizer = trained()
    before, weight = model.norm.weight.detach().clone(), model.norm.weight
    del model, optimizer
    assert torch.equal(weight, before)


def test_safetensors_saves_and_loads_the_model(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    model, optimizer = trained()
    safetensors.save_model(model, str(tmp_path / "model"))
    safetensors.save_file(model.state_dict(), str(tmp_path / "state"))
    for load in (safetensors.load_model, lambda model, path: model.load_state_dict(safetensors.load_file(path))):
        other = tiny_gpt(5)
        load(other, str(tmp_path / "model"))
        assert torch.equal(bits(other), bits(model))
    safetensors.load_model(model, str(tmp_path / "state"))  # into the vector
    assert model.head.weight.data_ptr() in optimizer._flat._memory


# ---- DDP -------------------------------------------------------------------------------------------


def under_ddp(rank, hook, late):
    """Parameters after some steps on batches of the rank's own: of the bare model, or in a wrapper with a hook; and what was logged."""
    lines, handler = [], logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("thinwire").addHandler(handler)
    try:
        model = tiny_gpt()
        wrapped = model
        optimizer = thinwire.AdamW(model.parameters(), lr=1e-2) if late else None
        if hook is not None:
            wrapped = nn.parallel.DistributedDataParallel(model)
            wrapped.register_comm_hook(None, hook)
        optimizer = optimizer or thinwire.AdamW(model.parameters(), lr=1e-2)
        tokens = torch.randint(31, (4, 8), generator=torch.Generator().manual_seed(rank))
        for _ in range(4):
            optimizer.zero_grad()
            wrapped(tokens).square().mean().backward()
            optimizer.step()
    finally:
        logging.getLogger("thinwire").removeHandler(handler)
    return bits(model), lines


@pytest.mark.parametrize("late", [False, True])
def test_ddp_with_a_no_op_hook_is_the_bare_model(late):
    for (bare, _), (wrapped, lines) in zip(ranks.run(2, under_ddp, None, late), ranks.run(2, under_ddp, noop_hook, late), strict=True):
        assert torch.equal(bare, wrapped)
        assert lines == []


def test_ddp_with_a_hook_that_averages_is_refused():
    for error in ranks.run(2, under_ddp, allreduce_hook, False, allowed=[RuntimeError]):
        assert "noop_hook" in str(error) and "no_sync()" in str(error)


# ---- Lightning -------------------------------------------------------------------------------------


def fitted(lightning, precision, kind):
    """A small network after a few steps with clipping, and what the norms of its gradients were at the steps."""
    norms = []

    class Small(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.network = nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 1))

        def training_step(self, batch):
            return (self.network(batch[0]).squeeze(1) - 3 * batch[0].sum(1)).square().mean()

        def on_before_zero_grad(self, optimizer):
            grads = [param.grad for param in self.parameters() if param.grad is not None]
            if grads:
                norms.append(torch.cat([grad.flatten() for grad in grads]).norm().item())

        def configure_optimizers(self):
            return kind(self.parameters(), lr=1e-3)

    rows = torch.randn(48, 4, generator=torch.Generator().manual_seed(1))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(rows), batch_size=8)
    module = Small()
    quiet = {name: False for name in ("enable_checkpointing", "enable_progress_bar", "enable_model_summary", "logger")}
    lightning.Trainer(accelerator="cpu", max_epochs=1, precision=precision, gradient_clip_val=0.5, **quiet).fit(module, loader)
    return bits(module), norms


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_lightning_clips_in_every_precision(precision):
    lightning = pytest.importorskip("lightning")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    ours, norms = fitted(lightning, precision, thinwire.AdamW)
    theirs, their_norms = fitted(lightning, precision, torch.optim.AdamW)
    assert norms == pytest.approx(their_norms, rel=1e-3) and max(norms) == pytest.approx(0.5, rel=1e-3)
    assert (ours - theirs).abs().max() < 1e-5


ASKS = "def asks(optimizer): return getattr(optimizer, '_step_supports_amp_scaling', False)"


@pytest.mark.parametrize(("module", "answer"), [("torch.amp.grad_scaler", True), ("lightning.fabric.plugins.precision.amp", False)])
def test_a_scaler_and_lightning_get_different_answers(module, answer):
    _, optimizer = trained(0)
    names = {"__name__": module}
    exec(ASKS, names)
    assert names["asks"](optimizer) is answer
