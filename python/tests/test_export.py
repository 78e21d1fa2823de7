"""What `thinwire export` writes computes the same logits in PyTorch as the command does."""

import json

import pytest
from command import need, thinwire

torch = pytest.importorskip("torch")
F = torch.nn.functional

PROMPT = "To be, or not"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    need()
    folder = tmp_path_factory.mktemp("export") / "run"
    sizes = "--layers 2 --dim 32 --heads 4 --context 16 --batch 2 --eval-examples 8".split()
    thinwire("train", *sizes, "--steps", 60, "--workers", 2, "--out", folder, "--quiet")
    return folder


@pytest.fixture(scope="module")
def expected(run):
    """The command's own logits: a row for each token of the prompt."""
    shown = json.loads(thinwire("generate", run, "--prompt", PROMPT, "--tokens", 1, "--logits", "--json"))
    assert shown["prompt_tokens"] == list(PROMPT.encode())
    logits = torch.tensor(shown["logits"])
    assert logits.shape == (len(PROMPT), 256) and logits.std() > 0.1
    return logits


def read(path):
    """A safetensors file of F32, without the package safetensors."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__")
    body = bytearray(data[8 + length :])
    return {
        name: torch.frombuffer(body, dtype=torch.float32, offset=info["data_offsets"][0], count=torch.Size(info["shape"]).numel())
        .reshape(info["shape"])
        .clone()
        for name, info in header.items()
    }


def logits_by_the_names_of_thinwire(w, tokens, layers, heads):
    """The network as docs/command.md describes it."""
    x = w["token.weight"][tokens] + w["position.weight"][: len(tokens)]
    dim = x.shape[1]

    def norm(x, name):
        return F.layer_norm(x, (dim,), w[f"{name}.weight"], w[f"{name}.bias"], 1e-5)

    def linear(x, name):
        return F.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

    for layer in (f"layer.{index}" for index in range(layers)):
        qkv = linear(norm(x, f"{layer}.norm1"), f"{layer}.qkv")
        q, k, v = (part.reshape(len(tokens), heads, -1).transpose(0, 1) for part in qkv.split(dim, 1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + linear(mixed.transpose(0, 1).reshape(len(tokens), dim), f"{layer}.proj")
        wide = F.gelu(linear(norm(x, f"{layer}.norm2"), f"{layer}.expand"), approximate="tanh")
        x = x + linear(wide, f"{layer}.contract")
    return norm(x, "norm") @ w["token.weight"].T


def test_own_names_in_plain_pytorch(run, expected, tmp_path):
    out = tmp_path / "own.safetensors"
    thinwire("export", run, "--out", out, "--names", "thinwire")
    weights = read(out)
    tokens = torch.tensor(list(PROMPT.encode()))
    logits = logits_by_the_names_of_thinwire(weights, tokens, layers=2, heads=4)
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    # Every matrix counts: with its rows in another order the logits are others.
    for name in (name for name, tensor in weights.items() if tensor.dim() == 2):
        wrong = logits_by_the_names_of_thinwire({**weights, name: weights[name].flip(0)}, tokens, layers=2, heads=4)
        assert (wrong - expected).abs().max() > 2e-3, name


def test_hugging_face_loads_a_gpt(run, expected, tmp_path):
    transformers = pytest.importorskip("transformers")
    thinwire("export", run, "--out", tmp_path / "model.safetensors")
    model, loaded = transformers.GPT2LMHeadModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(loaded.values()), loaded  # nothing missing, nothing left over, nothing of another shape
    with torch.no_grad():
        logits = model.eval()(torch.tensor([list(PROMPT.encode())])).logits[0]
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
