"""Golden numbers for `tests/resnet.rs`: the small ResNet in PyTorch, in double precision.

    python3 crates/thinwire-models/tests/golden/resnet.py > crates/thinwire-models/tests/golden/resnet.txt

needs PyTorch (written with 2.15). Parameters and images follow a formula, `wave`, that the Rust test repeats; what comes
out is kept: the mean loss, the logits, and of each tensor's gradient its norm, its product with `wave`, and some values.
Tensors are numbered and named as in `src/resnet.rs`; convolutions are turned to height × width × in × out.
"""

import pathlib
import sys

import torch
import torch.nn.functional as F

sys.path.insert(0, str(pathlib.Path(__file__).parents[4] / "benchmarks" / "throughput"))
from resnet import ResNet  # noqa: E402

# channels in, height, width, classes, channels, blocks, batch
CASES = [(1, 8, 8, 3, 8, 1, 3), (3, 9, 7, 4, 16, 1, 1), (1, 28, 28, 10, 16, 1, 3), (3, 12, 10, 5, 8, 2, 2)]
SAMPLES = 8


def wave(start, count):
    """Numbers in [-1, 1) that look like noise and are the same everywhere: the start-th to the (start + count)-th."""
    index = torch.arange(start, start + count, dtype=torch.int64)
    return ((index * 2654435761) % 2**32).double() / 2**31 - 1


def scale(name, shape):
    """Where a tensor's values lie: around the first, as far as the second."""
    if len(shape) > 1:
        fan_in = shape.numel() // shape[0]
        return 0.0, (6.0 / fan_in) ** 0.5
    return (1.0 if name.endswith("weight") else 0.0), 0.2


def to_ours(values):
    return values.permute(2, 3, 1, 0) if values.dim() == 4 else values


def from_ours(flat, shape):
    if len(shape) == 4:
        out, ins, height, width = shape
        return flat.reshape(height, width, ins, out).permute(3, 2, 0, 1)
    return flat.reshape(shape)


def show(values):
    return " ".join(f"{value.item() if torch.is_tensor(value) else value:.9g}" for value in values)


def main():
    torch.set_default_dtype(torch.float64)
    for case in CASES:
        channels_in, height, width, classes, channels, blocks, batch = case
        net, start = ResNet(channels_in, classes, channels, blocks), 0
        for name, tensor in net.named_parameters():
            base, spread = scale(name, tensor.shape)
            flat = (base + spread * wave(start, tensor.numel())).float().double()
            tensor.data.copy_(from_ours(flat, tensor.shape))
            start += tensor.numel()
        count = batch * channels_in * height * width
        x = wave(1000, count).float().double().reshape(batch, channels_in, height, width)
        logits = net(x)
        loss = F.cross_entropy(logits, torch.arange(batch) % classes)
        loss.backward()
        print("case", *case)
        print("loss", show([loss]))
        print("logits", show(logits.flatten()))
        for name, tensor in net.named_parameters():
            base, spread = scale(name, tensor.shape)
            grad = to_ours(tensor.grad).flatten()
            some = grad[torch.arange(SAMPLES) * len(grad) // SAMPLES]
            print("tensor", name, len(grad), show([base, spread, grad.norm(), grad @ wave(7, len(grad)), *some]))


if __name__ == "__main__":
    main()
