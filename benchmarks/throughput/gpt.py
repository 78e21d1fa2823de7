"""Tokens a second of the tiny `gpt` in PyTorch, forward and backward, on one thread, in f32.

    python benchmarks/throughput/gpt.py

The counterpart of crates/thinwire-models/examples/throughput.rs: the same network, batch and loss. Prints the fastest of a few
rounds, as the machine may be busy with something else.
"""

import time

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY, CONTEXT, LAYERS, DIM, HEADS, BATCH = 256, 128, 4, 128, 4, 8
ROUNDS, STEPS = 3, 20


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.expand, self.contract = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).view(BATCH, CONTEXT, 3, HEADS, DIM // HEADS).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(BATCH, CONTEXT, DIM))
        return x + self.contract(F.gelu(self.expand(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, DIM), nn.Embedding(CONTEXT, DIM)
        self.layers = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(DIM)

    def forward(self, tokens):
        hidden = self.norm(self.layers(self.token(tokens) + self.position.weight))
        return hidden @ self.token.weight.T


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Gpt()
    tokens, targets = torch.randint(VOCABULARY, (2, BATCH, CONTEXT))

    def learn():
        model.zero_grad()
        F.cross_entropy(model(tokens).view(-1, VOCABULARY), targets.view(-1)).backward()

    learn()
    fastest = float("inf")
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(STEPS):
            learn()
        fastest = min(fastest, time.perf_counter() - began)
    print(f"{STEPS * BATCH * CONTEXT / fastest:.0f} tokens/s")


main()
