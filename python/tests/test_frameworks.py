"""What frameworks are told, and what their hooks do, without the frameworks: the examples have the real ones."""

import copy
import io
import subprocess
import sys
import types

import pytest
import ranks
import torch
from models import bits, tiny_gpt
from test_ranks import build, steps, trained
from test_states import Heard

import thinwire
from thinwire._frameworks import copied, unwrapped


def pretend(*modules):
    """A process that has imported these, and has made an Accelerator if Accelerate is among them."""
    for name in modules:
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].is_initialized = lambda: True


def saved(state):
    file = io.BytesIO()
    torch.save({"optimizer": state}, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=True)["optimizer"]


def asked(rank, modules):
    _, optimizer = trained(rank, "ZeroOneAdam", 18)
    with Heard() as before:
        saved(optimizer.state_dict())  # every rank its own, and nobody who would do otherwise
    pretend(*modules)
    with Heard() as unsaved:
        state = optimizer.state_dict()
        optimizer.load_state_dict(copy.deepcopy(state))  # as Accelerate does when it takes an optimizer in: nothing is saved
    with Heard() as alone:
        saved(copy.copy(state))
        saved(state)
    with Heard() as whole:
        optimizer.consolidate_state_dict()
        optimizer._warned = frozenset()
        saved(optimizer.state_dict())
    states = [saved(state)]
    torch.distributed.broadcast_object_list(states)
    with pytest.raises(ValueError) as error:
        optimizer.load_state_dict(states[0])
    return before + unsaved, alone, whole, str(error.value)


ACCELERATE = "thinwire.accelerate.register(accelerator, "


@pytest.mark.parametrize(
    "modules, remedies",
    [
        (("accelerate.state", "transformers.trainer"), ("thinwire.transformers.ThinwireCallback()", ACCELERATE)),
        (("accelerate.state",), (ACCELERATE,)),
    ],
)
def test_a_save_without_our_hook_is_warned_of_and_its_resume_names_it(modules, remedies):
    first, second = ranks.collect(ranks.start(2, asked, modules))
    assert first[0] == second[0] == first[2] == second[2] == second[1] == []
    (warning,) = first[1]
    assert "the optimizer state of rank 0 alone" in warning
    for text in (warning, first[3], second[3]):
        assert all(remedy in text for remedy in remedies)
        assert ("ThinwireCallback" in text) == (len(remedies) == 2)


def in_lightning(rank):
    pretend("lightning.pytorch.trainer")
    heard = []
    for count in (16, 18):
        _, optimizer = trained(rank, "ZeroOneAdam", count)
        with Heard() as texts, optimizer.consensus():
            optimizer.consolidate_state_dict()
        heard.append(list(texts))
        with Heard() as texts:
            optimizer.consolidate_state_dict()
            saved(optimizer.state_dict())
        heard.append(texts)
    return heard


def test_lightning_without_the_callback_is_told_whose_model_it_saves():
    first, second = ranks.collect(ranks.start(2, in_lightning))
    assert first[:3] == [[], [], []] and second == [[], [], [], []]
    (warning,) = first[3]
    assert "is rank 0's own" in warning and "thinwire.lightning.ThinwireCallback()" in warning


def test_a_state_by_parameter_is_there_when_asked_for_and_is_not_saved():
    model = tiny_gpt()
    optimizer = build("ZeroOneAdam", model.parameters())
    steps(model, optimizer, 3, 0)
    state = optimizer.state_dict()
    parts = state["state"]
    assert list(parts) == list(range(len(list(model.parameters())))) and all("v" in part for part in parts.values())
    assert state["state"] is parts
    for copied_state in (copy.copy(state), copy.deepcopy(state)):
        assert copied_state["state"].keys() == parts.keys()
    again = saved(state)
    assert again["state"] == {} and again["thinwire"].keys() == state["thinwire"].keys()
    optimizer.load_state_dict(again)
    assert "thinwire" not in optimizer.param_groups[0]


# ---- Trainer ---------------------------------------------------------------------------------------


class Wrapped:
    """As Accelerate's."""

    def __init__(self, optimizer):
        self.optimizer = optimizer


def by_callback(rank):
    """The events of a Trainer: a step, an evaluation and a save between two syncs, and the best model at the end."""
    stub = types.ModuleType("transformers")
    for name in ("TrainerCallback", "TrainerControl", "TrainerState", "TrainingArguments"):
        setattr(stub, name, type(name, (), {}))
    sys.modules["transformers"] = stub
    whole, _ = trained(rank, "ZeroOneAdam", 22)
    model, optimizer = trained(rank, "ZeroOneAdam", 0)
    callback = thinwire.transformers.ThinwireCallback()
    args = types.SimpleNamespace(eval_on_start=False, save_strategy="steps", save_only_model=False, load_best_model_at_end=True)
    state = types.SimpleNamespace(best_model_checkpoint="somewhere")
    control = types.SimpleNamespace(should_save=False, should_evaluate=False)
    callback.on_train_begin(args, state, control, optimizer=Wrapped(optimizer))
    seen = {}
    for step in range(22):
        callback.on_step_begin(args, state, control)
        steps(model, optimizer, 1, rank, first=step)
        own = bits(model)
        control.should_evaluate, control.should_save = step in (17, 21), step == 17
        callback.on_step_end(args, state, control)
        if control.should_evaluate:
            seen[f"evaluated {step}"] = bits(model).numpy()
            args.save_strategy = "best" if step == 21 else "steps"
            callback.on_evaluate(args, state, control)
        if control.should_save:
            seen["saved"] = bits(model).numpy()
            seen["states"] = sorted(optimizer.state_dict().get("thinwire_others", {}))
            callback.on_save(args, state, control)
            seen["left"] = bool(torch.equal(bits(model), own) and not torch.equal(own, torch.from_numpy(seen["saved"])))
    seen["undisturbed"] = bool(torch.equal(own, bits(whole)))
    with torch.no_grad():
        for param in model.parameters():
            param.fill_(7.0)  # the best model is loaded where the strategy "best" did not save
    callback.on_train_end(args, state, control)
    seen["kept"] = bool((bits(model) == 7.0).all())
    return seen


def test_the_callback_of_trainer_saves_the_consensus_and_leaves_the_training_alone():
    first, second = ranks.collect(ranks.start(2, by_callback))
    assert (first["evaluated 17"] == second["saved"]).all() and (first["saved"] == second["saved"]).all()
    assert (first["evaluated 21"] == second["evaluated 21"]).all()
    assert first["states"] == ["rank-1-of-2"] and second["states"] == []
    for seen in (first, second):
        assert seen["left"] and seen["undisturbed"] and seen["kept"]


# ---- Accelerate ------------------------------------------------------------------------------------


class Hooks:
    """What of an Accelerator is asked for."""

    def __init__(self):
        self.hooks = []

    def _register(self, hook):
        self.hooks.append(hook)
        return types.SimpleNamespace(remove=lambda: self.hooks.remove(hook))

    register_save_state_pre_hook = _register


def by_accelerate(rank):
    model, optimizer = trained(rank, "ZeroOneAdam", 18)
    accelerator, own = Hooks(), bits(model)
    handle = thinwire.accelerate.register(accelerator, Wrapped(optimizer))
    weights = [model.state_dict()]
    accelerator.hooks[0]([model], weights, "")
    assert torch.equal(own, bits(model))
    assert weights[0].keys() == model.state_dict().keys()
    alone = all(value.untyped_storage().nbytes() == 4 * value.numel() for value in weights[0].values())
    states = sorted(optimizer.state_dict().get("thinwire_others", {}))
    handle.remove()
    saved = torch.cat([weights[0][name].flatten() for name, _ in model.named_parameters()])
    return own.numpy(), saved.numpy(), alone, states, len(accelerator.hooks)


def test_the_hook_of_accelerate_saves_the_consensus_in_tensors_of_their_own():
    first, second = ranks.run(2, by_accelerate)
    assert (first[0] != second[0]).any() and (first[1] == second[1]).all()
    assert abs(first[1] - (first[0] + second[0]) / 2).max() < 1e-6
    assert first[2:] == (True, ["rank-1-of-2"], 0) and second[2:] == (True, [], 0)


def with_buffers(rank):
    """What is saved of buffers, and what is left of them."""
    model = tiny_gpt()
    model.register_buffer("mean", torch.full((2,), float(rank)))
    optimizer = thinwire.AdamW(model.parameters(), buffers=model)
    accelerator = Hooks()
    thinwire.accelerate.register(accelerator, optimizer)
    weights = [model.state_dict()]
    accelerator.hooks[0]([model], weights, "")
    left = model.mean.tolist()
    with optimizer.consensus():
        model.mean.fill_(7.0)  # as if the best model were loaded
        optimizer._keep_what_was_loaded()
    return weights[0]["mean"].tolist(), left, model.mean.tolist()


def test_saved_buffers_are_those_of_the_consensus_and_loaded_ones_stay():
    assert ranks.run(2, with_buffers) == [([0.5, 0.5], [float(rank)] * 2, [7.0, 7.0]) for rank in range(2)]


def test_copies_keep_what_is_tied_and_what_is_not_ours():
    model = tiny_gpt()
    model.twin = model.tokens
    model.register_buffer("count", torch.zeros(1))
    optimizer = build("AdamW", model.parameters())
    state = copied(model.state_dict(), optimizer)
    assert state["twin.weight"] is state["tokens.weight"]
    assert state["count"].data_ptr() == model.count.data_ptr()
    assert state["head.weight"].data_ptr() != model.head.weight.data_ptr()


def test_an_optimizer_that_is_not_ours_is_refused():
    with pytest.raises(TypeError, match="expected one of thinwire, found AdamW"):
        unwrapped(torch.optim.AdamW(tiny_gpt().parameters()))


def test_the_package_needs_no_framework():
    names = "{'torch', 'transformers', 'lightning', 'pytorch_lightning', 'accelerate'}"
    subprocess.run([sys.executable, "-c", f"import sys, thinwire; assert not {names} & set(sys.modules)"], check=True)
    needs = f"import sys, thinwire.optim, thinwire.accelerate; assert not ({names} - {{'torch'}}) & set(sys.modules)"
    subprocess.run([sys.executable, "-c", needs], check=True)
