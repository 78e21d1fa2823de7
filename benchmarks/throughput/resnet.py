"""Times the small ResNet of `thinwire-models` in PyTorch: forward and backward, one thread, batch 16 of 28×28×1.

    python3 benchmarks/throughput/resnet.py [seconds]

Prints images a second. The gradients are zeroed in place between steps, as the flat vector's are.
CHANNELS_LAST=1 takes PyTorch's other layout; which of the two is faster differs from machine to machine.
"""

import os
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    """Two 3×3 convolutions and a shortcut, a 1×1 convolution where the size changes."""

    def __init__(self, channels_in, channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.norm1 = nn.GroupNorm(8, channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm2 = nn.GroupNorm(8, channels)
        self.shortcut = None
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.GroupNorm(8, channels)
            )

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return F.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class ResNet(nn.Module):
    """The network of `src/resnet.rs`, `blocks` to a stage."""

    def __init__(self, channels_in=1, classes=10, width=16, blocks=1):
        super().__init__()
        self.stem = nn.Conv2d(channels_in, width, 3, 1, 1, bias=False)
        self.norm = nn.GroupNorm(8, width)
        layers, have = [], width
        for stage in range(3):
            for block in range(blocks):
                channels = width << stage
                layers.append(Block(have, channels, 2 if stage > 0 and block == 0 else 1))
                have = channels
        self.blocks = nn.Sequential(*layers)
        self.classifier = nn.Linear(have, classes)

    def forward(self, x):
        x = self.blocks(F.relu(self.norm(self.stem(x))))
        return self.classifier(x.mean((2, 3)))


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 5.0
    layout = torch.channels_last if os.environ.get("CHANNELS_LAST", "0") == "1" else torch.contiguous_format
    torch.set_num_threads(1)
    torch.manual_seed(1)
    batch = 16
    model = ResNet().to(memory_format=layout)
    x = torch.randn(batch, 1, 28, 28).to(memory_format=layout)
    labels = torch.randint(10, (batch,))

    def step():
        model.zero_grad(set_to_none=False)
        F.cross_entropy(model(x), labels).backward()

    for _ in range(10):
        step()
    steps, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        step()
        steps += 1
    print(f"{steps * batch / (time.perf_counter() - start):.0f}")


if __name__ == "__main__":
    main()
