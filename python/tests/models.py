"""Small networks and data, the same everywhere."""

import torch
from torch import nn
from torch.nn import functional


class TinyGpt(nn.Module):
    """Embeddings, one block of attention, and a head: the kinds of layers that real models have."""

    def __init__(self, vocabulary=31, width=16, length=8):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(length, width)
        # No biases: the gradient of attention's key bias is 0 but for rounding, and Adam makes whole steps of that.
        self.block = nn.TransformerEncoderLayer(
            width, 2, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True, bias=False
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        x = self.tokens(tokens) + self.places(torch.arange(length))
        return self.head(self.norm(self.block(x, src_mask=mask.to(x.dtype), is_causal=True)))

    def loss(self, seed, batch=8):
        """On a batch that depends on the seed alone: each token follows from the one before, mostly."""
        random = torch.Generator().manual_seed(seed)
        tokens = torch.randint(31, (batch, 1), generator=random)
        noise = torch.randint(3, (batch, 8), generator=random)
        rows = [tokens]
        for i in range(8):
            rows.append((rows[-1] * 3 + noise[:, i : i + 1]) % 31)
        tokens = torch.cat(rows, 1)
        out = self(tokens[:, :-1])
        return functional.cross_entropy(out.flatten(0, 1).float(), tokens[:, 1:].flatten())


def tiny_gpt(seed=0):
    torch.manual_seed(seed)
    return TinyGpt()


def decayed(model, **more):
    """Two param groups, as GPTs have them: matrices decay, the rest does not."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    rest = [p for p in model.parameters() if p.dim() < 2]
    return [{"params": matrices, "weight_decay": 0.1, **more}, {"params": rest, "weight_decay": 0.0}]


def bits(model):
    return torch.cat([p.detach().flatten().float() for p in model.parameters()]).clone()
