#!/usr/bin/env python3
"""Ordinary PyTorch models under `torch.optim.AdamW` and under this package's optimizers at their defaults, pair by pair.

    python benchmarks/convergence/ordinary.py --out DIR
    python benchmarks/convergence/ordinary.py --models conv-batchnorm,gpt2 --optimizers adamw,zero-one-adam --seeds 1 --out DIR

Every run is two ranks over gloo. A pair has the same seed, hence the same initial parameters, the same batches on each rank
and the same learning rates: a warm-up, then a cosine to zero, set by a scheduler of PyTorch at every step. The baseline is
`torch.optim.AdamW` on the mean of the ranks' gradients, as under DDP. The others are built as README.md says: the schedule is
told to them by `learning_rate`, and nothing else is, unless by `--set`. After the last step replicas are made equal,
BatchNorm's running statistics become their mean over the ranks, and held-out data are judged in eval mode; so for all.

Each finished run is a line of DIR/results.jsonl, and a run found there is not repeated: a study that was cut off goes on. One
folder is for one build of the package. Ends with tables in Markdown. A model passes if over all seeds

    its held-out loss is on average at most 1 % above AdamW's, or (classifiers) its accuracy at most 1 point below, and
    no tensor's largest |parameter| is more than 3 times AdamW's with the same seed.

`adamw-other-batches` may be among the optimizers: AdamW from the same parameters on other batches. It says what chance does.

The models: conv-batchnorm, conv-groupnorm, conv-layernorm, conv-plain (three convolutions with biases), resnet (biases before
BatchNorm) and dead-relu (hidden units from alive to dead for good) on Fashion-MNIST; gpt2 and lora (adapters on a frozen
GPT-2 that has learned the text before, for the same text backwards) on bytes of Dickens; bert (were six of these 32 words
replaced?) and embedding (the next word, tied embeddings of 4,000 words, most of them rare) on its words.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import functools
import gzip
import json
import math
import os
import pathlib
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: two ranks share the machine

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import Tensor, nn
from torch.nn import functional

import thinwire

RANKS = 2
WEIGHT_DECAY = 0.01
MOST_LOSS = 1.0  # % above AdamW's
MOST_ACCURACY = 1.0  # points below AdamW's
MOST_RATIO = 3.0  # of the largest |parameter| to AdamW's

BASELINES = ("adamw", "adamw-other-batches")
COMPRESSED = {
    "zero-one-adam": thinwire.ZeroOneAdam,
    "one-bit-adam": thinwire.OneBitAdam,
    "efficient-adam": thinwire.EfficientAdam,
    "thinwire-adamw": thinwire.AdamW,
}
SHARED = pathlib.Path(__file__).resolve().parent / "../../../shared/data"  # beside the checkout

Batch = tuple[Tensor, Tensor]


# Data: batches to learn from, drawn by a generator, and held-out ones that are always the same.


class Images:
    """Fashion-MNIST, its values normalized."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.images, self.labels = self.read(folder, "train")
        self.test = self.read(folder, "t10k")

    @staticmethod
    def read(folder: pathlib.Path, part: str) -> Batch:
        def values(kind: str, header: int) -> Tensor:
            content = gzip.decompress((folder / f"{part}-{kind}-ubyte.gz").read_bytes())
            return torch.frombuffer(bytearray(content[header:]), dtype=torch.uint8)

        return values("images-idx3", 16).view(-1, 1, 28, 28), values("labels-idx1", 8).long()

    @staticmethod
    def scaled(images: Tensor) -> Tensor:
        return (images.float() / 255 - 0.2860) / 0.3530

    def draw(self, size: int, random: torch.Generator) -> Batch:
        rows = torch.randint(len(self.labels), (size,), generator=random)
        return self.scaled(self.images[rows]), self.labels[rows]

    def held_out(self) -> Iterator[Batch]:
        for images, labels in zip(self.test[0].split(250), self.test[1].split(250), strict=True):
            yield self.scaled(images), labels


class Bytes:
    """Sequences of a text's bytes, each to be followed by the next. The last tenth is held out."""

    length = 64

    def __init__(self, text: bytes) -> None:
        self.text = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
        self.border = len(text) * 9 // 10

    def cut(self, starts: Tensor) -> Batch:
        rows = self.text[starts[:, None] + torch.arange(self.length + 1)]
        return rows[:, :-1], rows[:, 1:]

    def draw(self, size: int, random: torch.Generator) -> Batch:
        return self.cut(torch.randint(self.border - self.length - 1, (size,), generator=random))

    def held_out(self) -> Iterator[Batch]:
        yield from map(self.cut, torch.linspace(self.border, len(self.text) - self.length - 1, 1024).long().split(32))


def words_of(text: bytes, vocabulary: int) -> Tensor:
    """A number for each word, from 2 on, by frequency; 1 for all that are rarer than the vocabulary's."""
    words = re.findall(rb"[a-z']+", text.lower())
    common = collections.Counter(words).most_common(vocabulary - 2)
    numbers = {word: number for number, (word, _) in enumerate(common, 2)}
    return torch.tensor([numbers.get(word, 1) for word in words])


class NextWord:
    """Eight words and the one after them. The last tenth is held out."""

    length, vocabulary = 8, 4000

    def __init__(self, text: bytes) -> None:
        self.words = words_of(text, self.vocabulary)
        self.border = len(self.words) * 9 // 10

    def cut(self, starts: Tensor) -> Batch:
        rows = self.words[starts[:, None] + torch.arange(self.length + 1)]
        return rows[:, :-1], rows[:, -1]

    def draw(self, size: int, random: torch.Generator) -> Batch:
        return self.cut(torch.randint(self.border - self.length, (size,), generator=random))

    def held_out(self) -> Iterator[Batch]:
        yield from map(self.cut, torch.linspace(self.border, len(self.words) - self.length - 1, 16384).long().split(512))


class Forgeries:
    """32 words after a mark; in one half of them six were replaced by words of any frequency. The last tenth is held out."""

    length, vocabulary, replaced = 32, 2000, 6

    def __init__(self, text: bytes) -> None:
        self.words = words_of(text, self.vocabulary)
        self.border = len(self.words) * 9 // 10

    def cut(self, starts: Tensor, random: torch.Generator) -> Batch:
        rows = self.words[starts[:, None] + torch.arange(self.length)]
        labels = torch.randint(2, (len(rows),), generator=random)
        places = torch.rand(rows.shape, generator=random).argsort(1) < self.replaced
        others = torch.randint(2, self.vocabulary, rows.shape, generator=random)
        rows = torch.where(places & (labels == 1)[:, None], others, rows)
        return functional.pad(rows, (1, 0), value=self.vocabulary), labels

    def draw(self, size: int, random: torch.Generator) -> Batch:
        return self.cut(torch.randint(self.border - self.length, (size,), generator=random), random)

    def held_out(self) -> Iterator[Batch]:
        random = torch.Generator().manual_seed(0)
        for starts in torch.linspace(self.border, len(self.words) - self.length, 4096).long().split(128):
            yield self.cut(starts, random)


# Models. Each is built after the seed was set.


def norm_of(kind: str, channels: int, side: int) -> nn.Module:
    return {
        "batchnorm": lambda: nn.BatchNorm2d(channels),
        "groupnorm": lambda: nn.GroupNorm(4, channels),
        "layernorm": lambda: nn.LayerNorm([channels, side, side]),
        "plain": nn.Identity,
    }[kind]()


def conv(kind: str) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs, stride, side in [(1, 16, 1, 28), (16, 32, 2, 14), (32, 64, 2, 7)]:
        layers += [nn.Conv2d(inputs, outputs, 3, stride, 1), norm_of(kind, outputs, side), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 7 * 7, 10))


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first, self.first_norm = nn.Conv2d(inputs, outputs, 3, stride, 1), nn.BatchNorm2d(outputs)
        self.second, self.second_norm = nn.Conv2d(outputs, outputs, 3, 1, 1), nn.BatchNorm2d(outputs)
        same = inputs == outputs and stride == 1
        self.across = nn.Identity() if same else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        inner = functional.relu(self.first_norm(self.first(x)))
        return functional.relu(self.second_norm(self.second(inner)) + self.across(x))


def resnet() -> nn.Module:
    blocks = [Residual(16, 16, 1), Residual(16, 32, 2), Residual(32, 64, 2)]
    stem = [nn.Conv2d(1, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def dead_relu() -> nn.Module:
    """Half of the hidden units begin with biases from -0.5 to -20: some fire often, some rarely, some never."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    with torch.no_grad():
        for layer in (model[1], model[3]):
            layer.bias[:64] = -torch.logspace(math.log10(0.5), math.log10(20.0), 64)
    return model


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=64, n_embd=64, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0))


def bert() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}
    return BertForSequenceClassification(
        BertConfig(vocab_size=Forgeries.vocabulary + 1, max_position_embeddings=Forgeries.length + 1, num_labels=2, **sizes)
    )


class Embedding(nn.Module):
    """The next word from those before it, by a network whose first and last matrix are one."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.words = nn.Embedding(NextWord.vocabulary, width)
        nn.init.normal_(self.words.weight, std=0.05)
        self.inner = nn.Sequential(nn.Linear(NextWord.length * width, 128), nn.ReLU(), nn.Linear(128, width), nn.LayerNorm(width))
        self.bias = nn.Parameter(torch.zeros(NextWord.vocabulary))

    def forward(self, words: Tensor) -> Tensor:
        return functional.linear(self.inner(self.words(words).flatten(1)), self.words.weight, self.bias)


class Adapter(nn.Module):
    """LoRA around one of GPT-2's linear layers."""

    def __init__(self, base: nn.Module, rank: int = 8, alpha: float = 16.0) -> None:
        super().__init__()
        inputs, outputs = base.weight.shape
        self.base, self.scale = base, alpha / rank
        self.down, self.up = nn.Parameter(torch.randn(inputs, rank) / math.sqrt(inputs)), nn.Parameter(torch.zeros(rank, outputs))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.down @ self.up * self.scale


def lora(text: Bytes) -> nn.Module:
    """A GPT-2 that every rank trains for itself, all alike, then freezes."""
    model, random = gpt2(), torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(100):
        optimizer.param_groups[0]["lr"] = 1e-3 * rate_at(step, 10, 100)
        optimizer.zero_grad()
        loss_of(model, text.draw(16, random))[0].backward()
        optimizer.step()
    model.zero_grad(set_to_none=True)
    model.requires_grad_(False)
    for block in model.transformer.h:
        for module, name in [(block.attn, "c_attn"), (block.attn, "c_proj"), (block.mlp, "c_fc"), (block.mlp, "c_proj")]:
            setattr(module, name, Adapter(getattr(module, name)))
    return model


@dataclasses.dataclass
class Task:
    data: str
    build: Callable[..., nn.Module]
    lr: float
    batch: int  # a rank's
    steps: int = 200
    classifies: bool = True


TASKS = {
    "conv-batchnorm": Task("images", functools.partial(conv, "batchnorm"), 2e-3, 32),
    "conv-groupnorm": Task("images", functools.partial(conv, "groupnorm"), 2e-3, 32),
    "conv-layernorm": Task("images", functools.partial(conv, "layernorm"), 2e-3, 32),
    "conv-plain": Task("images", functools.partial(conv, "plain"), 2e-3, 32),
    "resnet": Task("images", resnet, 3e-3, 32),
    "gpt2": Task("bytes", gpt2, 1e-3, 16, classifies=False),
    "bert": Task("forgeries", bert, 1e-3, 32),
    "embedding": Task("words", Embedding, 4e-3, 128, classifies=False),
    "lora": Task("backwards", lora, 5e-3, 16, classifies=False),
    "dead-relu": Task("images", dead_relu, 2e-3, 32),
}


class Data:
    """Each kind of data, read when it is first asked for, and kept."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args

    @functools.cache  # noqa: B019
    def text(self) -> bytes:
        return gzip.decompress(self.args.text.read_bytes())

    @functools.cache  # noqa: B019
    def get(self, name: str) -> Any:
        kinds = {
            "images": lambda: Images(self.args.data),
            "bytes": lambda: Bytes(self.text()),
            "backwards": lambda: Bytes(self.text()[::-1]),
            "words": lambda: NextWord(self.text()),
            "forgeries": lambda: Forgeries(self.text()),
        }
        return kinds[name]()


# One run.


def rate_at(step: int, warmup: int, steps: int) -> float:
    """The part of the peak: as the engine's own schedule has it."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warmup) / max(1, steps - warmup))))


def loss_of(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """The mean loss, and the share of right answers."""
    logits = model(batch[0])
    logits = getattr(logits, "logits", logits).flatten(0, -2)
    labels = batch[1].flatten()
    return functional.cross_entropy(logits, labels), (logits.argmax(-1) == labels).float().mean()


class Mean:
    """The mean of the gradients over the ranks, as DDP computes it."""

    def __init__(self, params: list[nn.Parameter]) -> None:
        self.params = params

    def __call__(self) -> None:
        gradients = [torch.zeros_like(param) if param.grad is None else param.grad for param in self.params]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for param, part in zip(self.params, flat.split([param.numel() for param in self.params]), strict=True):
            if param.grad is not None:
                param.grad.copy_(part.view_as(param))


def optimizer_of(name: str, params: list[nn.Parameter], lr: float, schedule: dict[str, Any], options: dict[str, Any]) -> Any:
    if name in BASELINES:
        return torch.optim.AdamW(params, lr=lr, weight_decay=WEIGHT_DECAY)
    return COMPRESSED[name](params, lr=lr, weight_decay=WEIGHT_DECAY, learning_rate=schedule, **options)


def train(model: nn.Module, data: Any, task: Task, run: dict[str, Any]) -> dict[str, Any]:
    """Rounds and bytes of a rank."""
    steps, warmup, baseline = run["steps"], run["warmup"], run["optimizer"] in BASELINES
    params = [param for param in model.parameters() if param.requires_grad]
    schedule = {"peak": task.lr, "warmup": warmup, "decay": "cosine", "steps": steps}
    optimizer = optimizer_of(run["optimizer"], params, task.lr, schedule, run["options"])
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_at(step, warmup, steps))
    before_step = Mean(params) if baseline else lambda: None
    other = 500 if run["optimizer"] == "adamw-other-batches" else 0
    stream = 1000 * run["seed"] + other + dist.get_rank()
    random = torch.Generator().manual_seed(stream)
    torch.manual_seed(stream)  # dropout's
    model.train()
    for _ in range(steps):
        loss = loss_of(model, data.draw(task.batch, random))[0]
        optimizer.zero_grad()
        loss.backward()
        before_step()
        optimizer.step()
        scheduler.step()
    if baseline:
        size = sum(param.numel() for param in params)
        return {"rounds": {"exact": steps}, "bytes": 2 * 4 * size * steps * (RANKS - 1) // RANKS}
    optimizer.sync()
    traffic = optimizer.traffic()
    return {"rounds": traffic["rounds"], "bytes": traffic["bytes_sent"]}


@torch.no_grad()
def judge(model: nn.Module, data: Any) -> dict[str, float]:
    """Held-out loss and accuracy in eval mode, each rank's share of the batches put together."""
    for buffer in model.buffers():
        if buffer.is_floating_point():
            dist.all_reduce(buffer)
            buffer /= dist.get_world_size()
    model.eval()
    totals = torch.zeros(3, dtype=torch.float64)
    for number, batch in enumerate(data.held_out()):
        if number % dist.get_world_size() == dist.get_rank():
            loss, right = loss_of(model, batch)
            totals += torch.tensor([loss, right, 1.0], dtype=torch.float64) * len(batch[0])
    dist.all_reduce(totals)
    return {"val_loss": (totals[0] / totals[2]).item(), "accuracy": (totals[1] / totals[2]).item()}


def largest(model: nn.Module) -> dict[str, float]:
    """The largest |parameter| of each trained tensor, and of the keys' part of GPT-2's bias."""
    found = {}
    for name, param in model.named_parameters():
        if param.requires_grad:
            found[name] = param.abs().max().item()
            if name.endswith("c_attn.bias"):
                found[f"{name}[keys]"] = param.chunk(3)[1].abs().max().item()
    return found


def rank_main(rank: int, run: dict[str, Any], data: Data, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    started, task = time.monotonic(), TASKS[run["model"]]
    torch.manual_seed(run["seed"])
    model = task.build(data.get("bytes")) if run["model"] == "lora" else task.build()
    result = train(model, data.get(task.data), task, run)
    result["seconds"] = time.monotonic() - started
    result |= judge(model, data.get(task.data)) | {"largest": largest(model)}
    if rank == 0:
        pathlib.Path(folder, "result.json").write_text(json.dumps(result))
    dist.destroy_process_group()


def perform(run: dict[str, Any], data: Data) -> dict[str, Any]:
    data.get(TASKS[run["model"]].data)  # read before the fork, so that the ranks share it
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.start_processes(rank_main, (run, data, folder), nprocs=RANKS, start_method="fork")
        return run | json.loads(pathlib.Path(folder, "result.json").read_text())


# The study.


def key_of(run: dict[str, Any]) -> str:
    return json.dumps([run[word] for word in ("model", "optimizer", "seed", "lr", "steps", "warmup", "options")], sort_keys=True)


def options_for(optimizer: str, settings: list[str]) -> dict[str, Any]:
    """Those of `key=value` and `optimizer.key=value` that are for this optimizer."""
    options = {}
    for setting in settings if optimizer in COMPRESSED else []:
        key, value = setting.split("=", 1)
        only, _, word = key.rpartition(".")
        if only in ("", optimizer):
            try:
                options[word] = json.loads(value)
            except ValueError:
                options[word] = value
    return options


def wanted(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for model in args.models:
        steps = args.steps or TASKS[model].steps
        warmup = round(args.warmup * steps)
        for seed in args.seeds:
            for optimizer in args.optimizers:
                options = options_for(optimizer, args.set)
                run = {"model": model, "optimizer": optimizer, "seed": seed, "steps": steps, "warmup": warmup}
                yield run | {"lr": TASKS[model].lr, "options": options}


def study(args: argparse.Namespace) -> list[dict[str, Any]]:
    """All runs that are wanted and could be finished."""
    results, data, finished = args.out / "results.jsonl", Data(args), []
    known = {key_of(run): run for run in map(json.loads, results.read_text().splitlines())} if results.exists() else {}
    for run in wanted(args):
        done = known.get(key_of(run))
        if done is None:
            try:
                done = perform(run, data)
            except torch.multiprocessing.ProcessRaisedException as error:
                print(f"{run['model']} {run['optimizer']} seed {run['seed']} failed: {error}", file=sys.stderr, flush=True)
                continue
            with results.open("a") as file:
                file.write(json.dumps(done) + "\n")
            print(
                f"{done['model']} {done['optimizer']} seed {done['seed']}: {done['val_loss']:.5g}, accuracy {done['accuracy']:.4f} "
                f"({done['seconds']:.0f} s)",
                file=sys.stderr,
                flush=True,
            )
        finished.append(done)
    return finished


# The tables.


def worst_tensor(pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> tuple[float, str]:
    """The largest ratio of a tensor's largest |parameter| to AdamW's, and the tensor."""
    ratios = []
    for base, run in pairs:
        for name, value in run["largest"].items():
            theirs = base["largest"][name]
            ratio = value / theirs if theirs > 0 else (math.inf if value > 0 else 1.0)
            if not name.endswith("]"):  # a part of a tensor
                ratios.append((ratio, name))
    return max(ratios)


def row(model: str, optimizer: str, pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> str:
    def mean(values: Any) -> float:
        return statistics.fmean(values)

    differences = [100 * (run["val_loss"] / base["val_loss"] - 1) for base, run in pairs]
    points = [100 * (run["accuracy"] - base["accuracy"]) for base, run in pairs]
    ratio, tensor = worst_tensor(pairs)
    classifies = TASKS[model].classifies
    good = mean(differences) <= MOST_LOSS or (classifies and mean(points) >= -MOST_ACCURACY)
    verdict = "PASS" if good and ratio <= MOST_RATIO else "FAIL: " + " and ".join(["loss"] * (not good) + ["tensor"] * (ratio > MOST_RATIO))
    rounds = ", ".join(f"{count} {kind}" for kind, count in pairs[0][1]["rounds"].items() if count)
    fewer = mean(base["bytes"] / run["bytes"] for base, run in pairs)
    cells = [
        model,
        optimizer,
        f"{mean(base['val_loss'] for base, _ in pairs):.5g}",
        f"{mean(run['val_loss'] for _, run in pairs):.5g}",
        f"{mean(differences):+.3g} % ({' '.join(f'{difference:+.3g}' for difference in differences)})",
        f"{mean(points):+.2f} of {100 * mean(base['accuracy'] for base, _ in pairs):.1f}" if classifies else "",
        f"{ratio:.3g} `{tensor}`",
        rounds,
        f"{fewer:.1f}",
        verdict,
    ]
    return "| " + " | ".join(cells) + " |"


def pairs_of(runs: list[dict[str, Any]], model: str, optimizer: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    base = {run["seed"]: run for run in runs if (run["model"], run["optimizer"]) == (model, "adamw")}
    return [(base[run["seed"]], run) for run in runs if (run["model"], run["optimizer"]) == (model, optimizer) and run["seed"] in base]


def print_tables(args: argparse.Namespace, runs: list[dict[str, Any]]) -> None:
    words = ["model", "optimizer", "AdamW's loss", "loss", "to AdamW's, by seed", "points of accuracy", "largest to AdamW's"]
    words += ["rounds", "bytes, times fewer", "verdict"]
    print(f"| {' | '.join(words)} |\n{'|---' * len(words)}|")
    for model in args.models:
        for optimizer in args.optimizers:
            pairs = pairs_of(runs, model, optimizer)
            if pairs and optimizer != "adamw":
                print(row(model, optimizer, pairs))
    print_keys(args, runs)


def print_keys(args: argparse.Namespace, runs: list[dict[str, Any]]) -> None:
    """Key biases have a gradient of zero but for rounding, under any loss."""
    lines = []
    for run in runs:
        keys = {name: value for name, value in run["largest"].items() if name.endswith(("key.bias", "[keys]"))}
        if keys:
            name = max(keys, key=keys.__getitem__)
            value = keys[name]
            lines.append(f"| {run['model']} | {run['optimizer']} | {run['seed']} | {value:.3g} | {value / run['lr']:.3g} | `{name}` |")
    if lines:
        print("\n| model | optimizer | seed | largest key bias | in units of the peak rate | where |\n|---|---|---|---|---|---|")
        print("\n".join(lines))


def arguments() -> argparse.Namespace:
    def listed(text: str) -> list[str]:
        return text.split(",")

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=listed, default=list(TASKS))
    parser.add_argument("--optimizers", type=listed, default=["adamw", "zero-one-adam", "one-bit-adam"])
    parser.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[1, 2, 3])
    parser.add_argument("--steps", type=int, help="default: each model's own")
    parser.add_argument("--warmup", type=float, default=0.1, help="part of the steps")
    parser.add_argument("--set", nargs="*", default=[], metavar="[OPTIMIZER.]KEY=VALUE", help="options of the package's optimizers")
    parser.add_argument("--data", type=pathlib.Path, default=SHARED / "fashion-mnist", help="a folder with the IDX files")
    parser.add_argument("--text", type=pathlib.Path, default=SHARED / "dickens.txt.gz")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    for given, known in [(args.models, TASKS), (args.optimizers, [*BASELINES, *COMPRESSED])]:
        for name in given:
            if name not in known:
                parser.error(f"{name}: accepted: {', '.join(known)}")
    return args


def main() -> int:
    args = arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    runs = study(args)
    print_tables(args, runs)
    return 0 if len(runs) == len(list(wanted(args))) else 1


if __name__ == "__main__":
    sys.exit(main())
