"""Golden numbers for tests/transformer.rs: the same networks in PyTorch, in f64, with autograd's gradients.

    python tests/golden/transformer.py > tests/golden/transformer.txt        # in crates/thinwire-models; torch 2

Parameters and tokens are formulas that the Rust test repeats, so only results are stored. A line is a case, a key and values:
`loss` is the mean over the chosen rows, `logits` are those of the first and the last chosen row, and `gradient <tensor>` has
the sum, the norm, the product with the formula's own sequence (which no two values can be swapped in unnoticed), and samples.
"""

import torch
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)


def sequence(count, start=0):
    """Values in [-1/2, 1/2) that look random, and that an f32 holds exactly."""
    index = torch.arange(start, start + count, dtype=torch.int64)
    return ((index * 2654435761 % 2**32) >> 8).double() / 2**24 - 0.5


def tensors(shape):
    """Names and shapes, in the order in which they lie in the flat vector."""
    dim = shape["dim"]
    yield "token.weight", (shape["vocabulary"], dim)
    yield "position.weight", (shape["context"], dim)

    def norm(name):
        yield f"{name}.weight", (dim,)
        yield f"{name}.bias", (dim,)

    def linear(name, outputs, inputs):
        yield f"{name}.weight", (outputs, inputs)
        yield f"{name}.bias", (outputs,)

    for layer in range(shape["layers"]):
        yield from norm(f"layer.{layer}.norm1")
        yield from linear(f"layer.{layer}.qkv", 3 * dim, dim)
        yield from linear(f"layer.{layer}.proj", dim, dim)
        yield from norm(f"layer.{layer}.norm2")
        yield from linear(f"layer.{layer}.expand", 4 * dim, dim)
        yield from linear(f"layer.{layer}.contract", dim, 4 * dim)
    yield from norm("norm")
    if shape["classes"]:
        yield from linear("classifier", shape["classes"], dim)


def parameters(shape):
    params, start = {}, 0
    for name, size in tensors(shape):
        count = torch.Size(size).numel()
        gain = 1.0 if "norm" in name and name.endswith("weight") else 0.0
        params[name] = (gain + sequence(count, start)).view(size).requires_grad_()
        start += count
    return params


def hidden(shape, p, tokens, lengths):
    examples, context, dim, heads = len(lengths), shape["context"], shape["dim"], shape["heads"]
    mask = torch.arange(context)[None, None, :] < torch.tensor(lengths)[:, None, None]
    if shape["causal"]:
        mask = mask & torch.ones(context, context, dtype=torch.bool).tril()
    mask = mask.expand(examples, context, context)[:, None]

    def norm(name, x):
        return F.layer_norm(x, (dim,), p[f"{name}.weight"], p[f"{name}.bias"], eps=1e-5)

    def linear(name, x):
        return F.linear(x, p[f"{name}.weight"], p[f"{name}.bias"])

    x = p["token.weight"][tokens] + p["position.weight"]
    for layer in range(shape["layers"]):
        name = f"layer.{layer}."
        qkv = linear(name + "qkv", norm(name + "norm1", x))
        q, k, v = qkv.view(examples, context, 3, heads, dim // heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).reshape(x.shape)
        x = x + linear(name + "proj", mixed)
        wide = F.gelu(linear(name + "expand", norm(name + "norm2", x)), approximate="tanh")
        x = x + linear(name + "contract", wide)
    return norm("norm", x)


def numbers(values):
    return " ".join(f"{value:.9g}" for value in torch.as_tensor(values).tolist())


def run(case, lengths, chosen, **shape):
    context, classes = shape["context"], shape["classes"]
    p = parameters(shape)
    row = torch.arange(len(lengths) * context)
    tokens = (row * row * 3 + row // 5 + 1) % shape["vocabulary"]
    h = hidden(shape, p, tokens.view(-1, context), lengths).reshape(-1, shape["dim"])[chosen]
    logits = F.linear(h, p["classifier.weight"], p["classifier.bias"]) if classes else h @ p["token.weight"].T
    targets = torch.arange(len(chosen)) * 7 % logits.shape[1]
    loss = F.cross_entropy(logits, targets)
    loss.backward()
    print(case, "loss", numbers([loss.item()]))
    print(case, "logits", numbers(torch.cat([logits[0], logits[-1]])))
    for name, tensor in p.items():
        grad = tensor.grad.flatten()
        stride = -(-len(grad) // 24)
        print(case, "gradient", name, numbers([grad.sum(), grad.norm(), grad @ sequence(len(grad)), *grad[::stride]]))


run("causal", [70, 70], list(range(140)), vocabulary=11, context=70, layers=2, dim=12, heads=3, causal=True, classes=0)
run("masked", [66, 9, 1], [2, 3, 65, 66, 74, 132], vocabulary=13, context=66, layers=2, dim=8, heads=2, causal=False, classes=0)
run("classifier", [7, 66, 1], [0, 66, 132], vocabulary=13, context=66, layers=2, dim=8, heads=2, causal=False, classes=3)
