"""States of all ranks in one file, and rank 0's alone."""

import logging

import pytest
import ranks
import torch
from models import bits, tiny_gpt
from test_ranks import WORDS, build, steps, trained

import thinwire


class Heard(logging.Handler):
    """What the package logs inside the block."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())

    def __enter__(self):
        logging.getLogger("thinwire").addHandler(self)
        return self.texts

    def __exit__(self, *_):
        logging.getLogger("thinwire").removeHandler(self)


def values_of(optimizer):
    (state,) = optimizer.state_dict()["thinwire"].values()
    return state["values"]


def equal(a, b):
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def save_from_rank_0(rank, kind, count, path, consolidate=True):
    """The optimizer after `count` steps, whose state rank 0 has saved."""
    model, optimizer = trained(rank, kind, count)
    if consolidate:
        optimizer.consolidate_state_dict()
    if rank == 0:
        torch.save(optimizer.state_dict(), path)
    torch.distributed.barrier()
    return model, optimizer


# ---- all ranks' states in one file -----------------------------------------------------------------


def consolidated(rank, kind, count, path):
    model, optimizer = save_from_rank_0(rank, kind, count, path)
    again_model = tiny_gpt(seed=9)
    again = build(kind, again_model.parameters(), init="broadcast")
    with Heard() as heard:
        again.from_rank0 = True  # changes nothing where every rank finds its own
        again.load_state_dict(torch.load(path, weights_only=True))
    same = torch.equal(bits(model), bits(again_model))
    steps(model, optimizer, 7, rank, first=count)
    steps(again_model, again, 7, rank, first=count)
    theirs, ours = values_of(optimizer), values_of(again)
    same_state = all(equal(theirs[name], ours[name]) for name in theirs)
    return same, bool(torch.equal(bits(model), bits(again_model))), same_state, heard


@pytest.mark.parametrize("count", [16, 18])  # 0/1 Adam at a sync, and between two
@pytest.mark.parametrize("kind", WORDS)
def test_one_file_of_rank_0_serves_all_ranks_bit_for_bit(kind, count, tmp_path):
    assert ranks.run(3, consolidated, kind, count, str(tmp_path / "state.pt")) == [(True, True, True, [])] * 3


def kept(rank):
    model, optimizer = trained(rank, "ZeroOneAdam", 16)
    optimizer.consolidate_state_dict()
    at_a_sync = optimizer.state_dict()
    steps(model, optimizer, 2, rank, first=16)
    after_a_step = optimizer.state_dict()
    optimizer.consolidate_state_dict()
    between = optimizer.state_dict()
    optimizer.sync()
    after_a_sync = optimizer.state_dict()
    parts = [state.get("thinwire_others", {}) for state in (at_a_sync, after_a_step, between, after_a_sync)]
    return [{place: sorted(part) for place, part in others.items()} for others in parts]


def test_of_the_others_is_kept_what_differs_and_only_until_the_next_step():
    own = ["values.down_residue", "values.gradient_norms", "values.up_residue"]
    local = ["params", "values.down_residue", "values.gradient_norms", "values.m", "values.u", "values.up_residue"]
    assert ranks.run(2, kept) == [[{"rank-1-of-2": own}, {}, {"rank-1-of-2": local}, {}], [{}] * 4]


# ---- rank 0's state alone --------------------------------------------------------------------------


def refused(rank, path):
    """By a run that has nothing to do with it, and goes on."""
    save_from_rank_0(rank, "ZeroOneAdam", 6, path, consolidate=False)
    model, optimizer = trained(rank, "ZeroOneAdam", 5)
    before = bits(model)
    with pytest.raises(ValueError) as error:
        optimizer.load_state_dict(torch.load(path, weights_only=True))
    assert torch.equal(bits(model), before)
    steps(model, optimizer, 1, rank, first=5)
    return str(error.value)


def test_rank_0_alone_is_refused_with_the_ways_out(tmp_path):
    of_0, of_1 = ranks.run(2, refused, str(tmp_path / "state.pt"))
    assert of_0.startswith("worker 1 could not load its state, so none has")
    for text in (of_0, of_1):
        assert "it holds the state of rank-0-of-2, and this is rank-1-of-2" in text
        assert "consolidate_state_dict()" in text and "optimizer.from_rank0 = True" in text and "resume=dir" in text


def saved_alone(rank, kind, count, path):
    model, optimizer = save_from_rank_0(rank, kind, count, path, consolidate=False)
    return bits(model).numpy()


def loaded_alone(rank, kind, count, path):
    model = tiny_gpt()
    optimizer = build(kind, model.parameters())
    optimizer.from_rank0 = True
    saved = torch.load(path, weights_only=True)
    with Heard() as heard:
        optimizer.load_state_dict(saved)
    start, values = bits(model).numpy(), values_of(optimizer)
    (then,) = saved["thinwire"].values()
    shared = [equal(values[name], then["values"][name]) for name in ("m", "v", "b", "step") if name in values]
    assert not values["up_residue"].any() and not values["down_residue"].any()
    steps(model, optimizer, 12, rank, first=count)
    optimizer.sync()
    return start, shared, heard, bits(model).numpy()


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("kind", WORDS)
def test_rank_0_alone_serves_any_number_of_ranks(kind, n, tmp_path):
    path = str(tmp_path / "state.pt")
    saved = ranks.run(2, saved_alone, kind, 16, path)
    ends = ranks.run(n, loaded_alone, kind, 16, path)
    exact = kind == "AdamW" and n == 2  # it has no residuals: rank 0's state is all there is
    for rank, (start, shared, heard, end) in enumerate(ends):
        assert (start == saved[0]).all() and all(shared) and len(shared) >= 2
        assert (end == ends[0][3]).all()
        assert len(heard) == (rank == 0), heard
    assert f"all {n} ranks go on from the state of rank 0 of 2 alone: moments and schedule are kept" in ends[0][2][0]
    if exact:
        uninterrupted = ranks.run(2, saved_alone, kind, 28, path)
        assert (ends[0][3] == uninterrupted[0]).all()


def saved_whole(rank, path):
    model, _ = save_from_rank_0(rank, "ZeroOneAdam", 16, path)
    return bits(model).numpy()


def test_of_a_file_of_all_ranks_another_number_of_them_takes_rank_0s(tmp_path):
    path = str(tmp_path / "state.pt")
    saved = ranks.run(2, saved_whole, path)
    ends = ranks.run(3, loaded_alone, "ZeroOneAdam", 16, path)
    assert all((start == saved[0]).all() and (end == ends[0][3]).all() for start, _, _, end in ends)
    assert "all 3 ranks go on from the state of rank 0 of 2 alone" in ends[0][2][0]


def between(rank, path, in_consensus):
    """Rank 0's own parameters, the consensus, and what is loaded."""
    model, optimizer = trained(rank, "ZeroOneAdam", 18)
    own = bits(model)
    if not in_consensus and rank == 0:
        torch.save(optimizer.state_dict(), path)
    with optimizer.consensus():
        mean = bits(model)
        if in_consensus and rank == 0:
            torch.save(optimizer.state_dict(), path)
    torch.distributed.barrier()
    again_model = tiny_gpt()
    again = build("ZeroOneAdam", again_model.parameters())
    again.from_rank0 = True
    with Heard() as heard:
        again.load_state_dict(torch.load(path, weights_only=True))
    loaded, values = bits(again_model), values_of(again)
    assert values["step"] == 18 and values["steps_since_sync"] == 0 and not values["u"].any()
    steps(again_model, again, 10, rank, first=18)
    again.sync()
    return own.numpy(), mean.numpy(), loaded.numpy(), bits(again_model).numpy(), heard


@pytest.mark.parametrize("in_consensus", [False, True])
def test_between_two_syncs_rank_0_alone_is_its_own_or_the_consensus(in_consensus, tmp_path):
    first, second = ranks.run(2, between, str(tmp_path / "state.pt"), in_consensus)
    own, mean, loaded, end, heard = first
    assert (own != mean).any(), "the test should look between two syncs"
    assert (second[2] == loaded).all() and (second[3] == end).all()
    if in_consensus:
        assert (loaded == mean).all() and heard[0].endswith("the parameters are the consensus")
    else:
        # To the rounding of a·D − u/P, and to the decay of what was added since the sync.
        assert abs(loaded - own).max() < 0.01 * abs(own - mean).max()
        assert heard[0].endswith("the parameters are rank 0's own")


def lose_rank_0(state, rank):
    state["thinwire"] = {"rank-1-of-3": state["thinwire"].pop("rank-0-of-2")}


def change_config(state, rank):
    state["thinwire"]["rank-0-of-2"]["config"]["sync_every"] = 5


def lose_a_vector(state, rank):
    del state["thinwire"]["rank-0-of-2"]["values"]["v"]


def shorten(state, rank):
    first = state["thinwire"]["rank-0-of-2"]
    first["params"] = first["params"][1:]


def only_one_asks(state, rank):
    return rank == 1


def differ(state, rank):
    state["thinwire"]["rank-0-of-2"]["params"][3] += rank


def spoilt(rank, path, spoil):
    save_from_rank_0(rank, "ZeroOneAdam", 6, path, consolidate=False)
    model = tiny_gpt()
    optimizer = build("ZeroOneAdam", model.parameters())
    before, state = bits(model), torch.load(path, weights_only=True)
    optimizer.from_rank0 = spoil(state, rank) is not False
    with pytest.raises((ValueError, RuntimeError)) as error:
        optimizer.load_state_dict(state)
    assert torch.equal(bits(model), before)
    return str(error.value)


@pytest.mark.parametrize(
    "spoil, text",
    [
        (lose_rank_0, "expected the state of rank 0, found that of rank-1-of-3"),
        (change_config, "sync_every was 5 when the state was saved, and is 4 now"),
        (lose_a_vector, "the state has no v"),
        (shorten, "parameters, the model has"),
        (only_one_asks, "and this is rank-1-of-2"),
        (differ, "disagrees on"),
    ],
)
def test_what_is_no_state_of_rank_0_is_refused_on_all_ranks(spoil, text, tmp_path):
    for error in ranks.run(2, spoilt, str(tmp_path / "state.pt"), spoil):
        assert text in error, error


def test_one_process_needs_no_consolidation():
    model = tiny_gpt()
    optimizer = thinwire.ZeroOneAdam(model.parameters())
    optimizer.consolidate_state_dict()
    assert list(optimizer.state_dict()) == ["state", "param_groups", "thinwire"]
