"""Biases before a BatchNorm have no gradient but rounding. One bit cannot say so, and a stale variance must not make steps of it."""

import pytest
import ranks
import torch
from torch import nn
from torch.nn import functional

import thinwire

STEPS, CLASSES = 150, 4


def batch(seed, count=32):
    """Noisy images of 8 × 8 in four classes, one in five with another's label, so that no loss comes near to zero."""
    images = torch.randn(CLASSES, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=random)
    wrong = torch.rand(count, generator=random) < 0.2
    pixels = images[labels] + torch.randn(count, 1, 8, 8, generator=random)
    return pixels, torch.where(wrong, torch.randint(CLASSES, (count,), generator=random), labels)


def network():
    torch.manual_seed(0)
    first = [nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()]
    second = [nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(16 * 16, CLASSES))


def trained(rank, name, words):
    """The loss on held-out data and the largest bias."""
    model = network()
    optimizer = getattr(thinwire, name)(model.named_parameters(), lr=5e-3, buffers=model, **words)
    for step in range(STEPS):
        pixels, labels = batch(1000 * (rank + 1) + step)
        optimizer.zero_grad()
        functional.cross_entropy(model(pixels), labels).backward()
        optimizer.step()
    optimizer.sync()
    model.eval()
    pixels, labels = batch(0, 1000)
    with torch.no_grad():
        loss = functional.cross_entropy(model(pixels), labels).item()
    biases = [param.abs().max().item() for key, param in model.named_parameters() if key.endswith("bias")]
    return loss, max(biases), optimizer.traffic()


@pytest.fixture(scope="module")
def adamw():
    return ranks.run(2, trained, "AdamW", {})[0]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("OneBitAdam", {"warmup": 30}),
        ("ZeroOneAdam", {"freeze": 30}),
        ("ZeroOneAdam", {"freeze": 30, "sync_every": 4}),
    ],
)
def test_biases_before_a_batchnorm_stay_where_adamw_has_them(adamw, name, words):
    loss, bias, traffic = ranks.run(2, trained, name, words)[0]
    assert traffic["rounds"]["coarse"] > 0 and traffic["jumps"] == 0
    assert bias < 3 * adamw[1]
    assert loss < 1.1 * adamw[0]
