"""What is said once: jumps, warm-ups that do not end, runs that are too short to save anything."""

import logging

import numpy
import pytest
import ranks
import torch
from models import tiny_gpt
from test_states import Heard
from torch import nn

import thinwire

# Without bias correction, and with a beta2 this near to 1, v hardly counts a gradient: 0.1 / sqrt(1e-7) is 316 learning rates.
JUMPY = {"lr": 1e-3, "betas": (0.9, 0.9999999), "bias_correction": False}
JUMPED_AT = 3


def told(caplog, text):
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING and text in record.getMessage()]


def jump(optimizer, params):
    """No gradient but for the last parameter, from step JUMPED_AT on."""
    for step in range(JUMPED_AT + 2):
        for param in params:
            param.grad = torch.zeros_like(param)
        if step >= JUMPED_AT:
            params[-1].grad[1] = 1.0
        optimizer.step()


def layers():
    return nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))


@pytest.mark.parametrize("given", ["named", "found", "unknown"])
def test_the_first_jump_is_told_with_the_tensors_name(given, caplog):
    model = layers()
    params = [nn.Parameter(torch.zeros(7)), nn.Parameter(torch.zeros(2))] if given == "unknown" else list(model.parameters())
    optimizer = thinwire.AdamW(model.named_parameters() if given == "named" else params, **JUMPY)
    jump(optimizer, params)
    place = sum(param.numel() for param in params) - 1
    assert optimizer.traffic()["jumps"] == 2
    assert optimizer.traffic()["first_jump"] == {"step": JUMPED_AT, "parameter": place}
    (text,) = told(caplog, "learning rates")
    name = "parameter 1 (of shape [2])" if given == "unknown" else "1.bias (of shape [2])"
    assert text.startswith(f"step {JUMPED_AT} moved {name} by more than 100 learning rates")
    assert "fell or rose abruptly" in text and "betas very near to 1" in text


@pytest.mark.parametrize("kind", [thinwire.AdamW, thinwire.OneBitAdam, thinwire.ZeroOneAdam, thinwire.EfficientAdam])
def test_an_ordinary_run_has_no_jumps(kind, caplog):
    model = tiny_gpt()
    optimizer = kind(model.parameters(), lr=1e-2)
    for step in range(30):
        optimizer.zero_grad()
        model.loss(step).backward()
        optimizer.step()
    assert (optimizer.traffic()["jumps"], optimizer.traffic()["first_jump"]) == (0, None)
    assert not told(caplog, "")


def test_a_worker_counts_jumps():
    worker = thinwire.Worker("adam", parameters=4, betas=JUMPY["betas"], bias_correction=False)
    assert (worker.traffic()["jumps"], worker.traffic()["first_jump"]) == (0, None)
    params, grad = numpy.zeros(4, numpy.float32), numpy.array([0, 0, 1, 1], numpy.float32)
    worker.step(params, grad, 1e-3)
    assert (worker.traffic()["jumps"], worker.traffic()["first_jump"]) == (1, {"step": 0, "parameter": 2})


def few_parameters(kind, steps, **words):
    """Some steps of a model that is hardly one."""
    param = nn.Parameter(torch.ones(4))
    optimizer = kind([param], **words)
    for _ in range(steps):
        param.grad = param.detach().clone()
        optimizer.step()
    return optimizer


def test_a_warmup_that_does_not_end_is_told_once(caplog):
    optimizer = few_parameters(thinwire.OneBitAdam, 199)
    assert not told(caplog, "")
    optimizer.step()
    optimizer.step()
    (text,) = told(caplog, "")
    assert text.startswith("step 200: no step of 1-bit Adam has been compressed so far")
    assert "cannot end before step 1000" in text and "warmup=" in text and "schedule=" in text


@pytest.mark.parametrize("words", [{"warmup": 150}, {"warmup": 1000}, {"betas": (0.9, 0.9)}])
def test_a_warmup_that_ends_or_was_chosen_is_not_told(words, caplog):
    few_parameters(thinwire.OneBitAdam, 210, **words)
    assert not told(caplog, "")


def test_a_rule_that_finds_nothing_settled_is_told_otherwise(caplog):
    param = nn.Parameter(torch.ones(4))
    optimizer = thinwire.OneBitAdam([param], betas=(0.9, 0.9))
    for step in range(201):
        param.grad = torch.full_like(param, 1.0 if step == 0 else 0.0)  # v falls from then on
        optimizer.step()
    assert "has not found the variance settled yet" in told(caplog, "step 200: no step of 1-bit Adam")[0]


def schedule(steps):
    return {"peak": 1e-3, "warmup": 5, "decay": "cosine", "steps": steps}


@pytest.mark.parametrize("kind", [thinwire.OneBitAdam, thinwire.ZeroOneAdam])
def test_a_run_that_is_too_short_is_told_when_it_is_built(kind, caplog):
    params = list(tiny_gpt().parameters())
    kind(params, schedule=schedule(100))
    (text,) = told(caplog, "")
    assert "a run of 100 steps behaves like Adam: all its rounds are exact" in text
    caplog.clear()
    optimizer = kind(params, schedule=schedule(300))
    (text,) = told(caplog, "")
    assert f"a run of 300 steps has {optimizer.plan(300)['rounds']['exact']} exact rounds" in text
    part = int(text.partition("it sends ")[2].partition(" %")[0])
    assert 10 < part < 50  # about a hundred rounds of three hundred, in 32 or 16 bits, and the rest in one or fewer
    caplog.clear()
    kind(params, schedule=schedule(500))
    kind(params)
    kind(params, schedule=schedule(100), **({"warmup": 10} if kind is thinwire.OneBitAdam else {"freeze": 10}))
    assert not told(caplog, "")


def test_following_a_short_scheduler_is_told_too(caplog):
    optimizer = thinwire.ZeroOneAdam(tiny_gpt().parameters(), lr=1e-3)
    optimizer.follow(torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=80), steps=80)
    assert len(told(caplog, "a run of 80 steps behaves like Adam")) == 1


def of_two(rank):
    with Heard() as texts:
        thinwire.ZeroOneAdam(tiny_gpt().parameters(), schedule=schedule(50))
        few_parameters(thinwire.OneBitAdam, 200)
        model = layers()
        jump(thinwire.AdamW(model.named_parameters(), init="broadcast", **JUMPY), list(model.parameters()))
    return texts


def test_worker_0_speaks_for_all():
    first, second = ranks.run(2, of_two)
    assert [text.split(":")[0] for text in first[:2]] == ["zero-one-adam on a run of 50 steps behaves like Adam", "step 200"]
    assert len(first) == 3 and first[2].startswith(f"step {JUMPED_AT} moved 1.bias")
    assert second == []
