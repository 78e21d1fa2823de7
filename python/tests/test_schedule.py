"""The schedule of the learning rate: tables, functions, and schedulers of PyTorch that are read before the run."""

import copy
import math

import pytest
import ranks
import torch
from models import bits, tiny_gpt
from torch import nn
from torch.optim import lr_scheduler

import thinwire
from thinwire import _schedule

TABLE = {"peak": 1e-2, "warmup": 10, "decay": "cosine", "steps": 100}
EARLY = {"freeze": 40}  # by default so short a run has nothing but exact rounds


def cosine(step):
    """What TABLE says."""
    return 1e-2 * min((step + 1) / 10, 0.5 + 0.5 * math.cos(math.pi * max(0, step - 10) / 90))


def wsd(step):
    """Warm-up, stable, decay."""
    return 1e-2 * min((step + 1) / 10, 1.0, (100 - step) / 20)


def approaches(step):
    return 1.0 - math.exp(-(step + 1) / 20)


@pytest.mark.parametrize(
    ("function", "peak", "warmup", "decay"),
    [
        (cosine, 1e-2, 10, "cosine"),
        (wsd, 1e-2, 10, None),
        (lambda step: 3e-4, 3e-4, 0, "constant"),
        (lambda step: 1e-3 * min((step + 1) / 5, (100 - step) / 95), 1e-3, 5, "linear"),
        (lambda step: 1e-3 * min((step + 1) / 20, math.sqrt(20 / (step + 1))), 1e-3, 20, "inverse-sqrt"),
        (lambda step: 1e-3 * 0.5 ** (step // 25), 1e-3, 0, "step"),
        (lambda step: 0.5 - 0.5 * math.cos(math.pi * min(1, step / 50)), 1.0, 51, "constant"),
        (approaches, approaches(99), 82, "constant"),  # it creeps: 99 % of the peak is warm
    ],
)
def test_a_function_is_sampled(function, peak, warmup, decay):
    course = _schedule.sampled(function, 100)
    assert course.table["peak"] == pytest.approx(peak) and course.table["steps"] == 100
    assert course.table["warmup"] == warmup
    assert decay in (None, course.table["decay"])
    assert decay is None or course.off < 0.03
    assert decay is not None or course.off > 0.1  # no word of the engine's for it
    assert course.rates == [function(step) for step in range(100)]


def test_a_table_a_function_and_the_old_name_are_the_same():
    configs = [
        thinwire.ZeroOneAdam(tiny_gpt().parameters(), **words)._worker.config
        for words in (
            {"schedule": TABLE},
            {"learning_rate": TABLE},
            {"schedule": {key: TABLE[key] for key in ("peak", "warmup", "decay")}, "steps": 100},
            {"schedule": cosine, "steps": 100},
        )
    ]
    assert all(config == configs[0] for config in configs[:3])
    table = configs[3].pop("learning_rate")
    assert configs[3] == {word: value for word, value in configs[0].items() if word != "learning_rate"}
    assert {**table, "floor": 0.0} == configs[0]["learning_rate"] and table["floor"] < 1e-3
    worker = thinwire.Worker("zero-one-adam", parameters=8, schedule=TABLE)
    assert worker.config["learning_rate"] == configs[0]["learning_rate"]


@pytest.mark.parametrize(
    ("words", "error", "complaint"),
    [
        ({"schedule": TABLE, "learning_rate": TABLE}, ValueError, "learning_rate: the same as schedule; give one"),
        ({"schedule": cosine}, ValueError, "steps: expected the number of steps"),
        ({"schedule": TABLE, "steps": 99}, ValueError, "steps = 99: the schedule has 100"),
        ({"schedule": cosine, "steps": 0}, ValueError, "steps = 0: expected a whole number"),
        ({"schedule": cosine, "steps": True}, ValueError, "steps = True: expected a whole number"),
        ({"schedule": "cosine", "steps": 9}, TypeError, "schedule is a str; accepted: a dict"),
        ({"schedule": lambda step: 1 - step, "steps": 9}, ValueError, "the rate of step 2 is -1"),
        ({"schedule": lambda step: math.nan, "steps": 9}, ValueError, "the rate of step 0 is nan"),
        ({"schedule": lambda step: 0.0, "steps": 9}, ValueError, "all rates are 0"),
        ({"schedule": {"peek": 1.0}}, ValueError, "did you mean 'peak'"),
    ],
)
def test_schedules_that_are_refused(words, error, complaint):
    with pytest.raises(error, match=complaint):
        thinwire.ZeroOneAdam(tiny_gpt().parameters(), **words)


def test_a_scheduler_cannot_come_first():
    scheduler = lr_scheduler.StepLR(torch.optim.SGD([nn.Parameter(torch.ones(1))]), 3)
    with pytest.raises(TypeError, match=r"needs the optimizer first.*optimizer.follow\(scheduler\)"):
        thinwire.AdamW(tiny_gpt().parameters(), schedule=scheduler, steps=3)


# ---- schedulers of PyTorch -------------------------------------------------------------------------


def sequence(optimizer):
    warm = lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=10)
    return lr_scheduler.SequentialLR(optimizer, [warm, lr_scheduler.CosineAnnealingLR(optimizer, 90)], [10])


SCHEDULERS = {
    "lambda": (lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: cosine(step) / 1e-2), 1e-2, 10),
    "wsd": (lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: wsd(step) / 1e-2), 1e-2, 10),
    "onecycle": (lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 3e-2, total_steps=100, cycle_momentum=False), 3e-2, 30),
    "restarts": (lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 20, 2), 1e-2, 0),
    "sequence": (sequence, 1e-2, 11),
    "chained": (lambda o: lr_scheduler.ChainedScheduler([lr_scheduler.ExponentialLR(o, 0.99), lr_scheduler.StepLR(o, 30)]), 1e-2, 0),
}


def seen_by(scheduler):
    """All that following a scheduler must leave alone."""
    optimizer = scheduler.optimizer
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    return copy.deepcopy((groups, {key: value for key, value in scheduler.state_dict().items() if "schedulers" not in key}))


@pytest.mark.filterwarnings("ignore:Detected call of")
@pytest.mark.parametrize("kind", SCHEDULERS)
def test_a_scheduler_is_read_and_left_alone(kind, caplog):
    build, peak, warmup = SCHEDULERS[kind]
    model = tiny_gpt()
    optimizer = thinwire.ZeroOneAdam(model.parameters(), lr=1e-2, steps=100, **EARLY)
    scheduler = build(optimizer)
    before = seen_by(scheduler)
    optimizer.follow(scheduler)
    assert seen_by(scheduler) == before
    table = optimizer._worker.config["learning_rate"]
    assert (table["warmup"], table["steps"]) == (warmup, 100) and table["peak"] == pytest.approx(peak)
    assert optimizer.plan(100) == optimizer.plan(100, scheduler)
    assert ("no word for this schedule's shape" in caplog.text) == (kind in ("wsd", "restarts", "chained"))
    expected = optimizer._course.rates
    seen = []
    for step in range(100):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.zero_grad()
        model.loss(step).backward()
        optimizer.step()
        scheduler.step() if step < 99 else None
    assert seen == expected
    assert "the schedule says" not in caplog.text
    rounds = optimizer.traffic()["rounds"]
    assert rounds["coarse"] > 0
    if kind == "lambda":
        assert optimizer.plan(100)["rounds"] == rounds


def test_following_is_building_with_the_schedule():
    ends = []
    for follows in (True, False):
        model = tiny_gpt()
        words = {"steps": 100} if follows else {"schedule": cosine, "steps": 100}
        optimizer = thinwire.ZeroOneAdam(model.parameters(), lr=1e-2, **words, **EARLY)
        scheduler = lr_scheduler.LambdaLR(optimizer, lambda step: cosine(step) / 1e-2)
        if follows:
            optimizer.follow(scheduler)
        for step in range(100):
            optimizer.zero_grad()
            model.loss(step).backward()
            optimizer.step()
            scheduler.step()
        ends.append((bits(model), optimizer.traffic()["rounds"], optimizer._worker.config))
    assert torch.equal(ends[0][0], ends[1][0]) and ends[0][1:] == ends[1][1:]


def test_a_rate_that_leaves_the_schedule_is_told(caplog):
    optimizer = thinwire.ZeroOneAdam(tiny_gpt().parameters(), lr=1e-2)
    optimizer.follow(lr_scheduler.LambdaLR(optimizer, lambda step: wsd(step) / 1e-2), steps=100)
    optimizer.param_groups[0]["lr"] = 1e-2  # in the middle of the warm-up
    optimizer.step()
    assert "step 0: lr is 0.01, and the schedule says 0.001" in caplog.text


def test_schedulers_that_cannot_be_followed():
    optimizer = thinwire.ZeroOneAdam(tiny_gpt().parameters(), lr=1e-2)
    with pytest.raises(TypeError, match="goes by the loss"):
        optimizer.follow(lr_scheduler.ReduceLROnPlateau(optimizer), steps=10)
    with pytest.raises(TypeError, match="scheduler is a function; expected a scheduler"):
        optimizer.follow(cosine, steps=10)
    other = lr_scheduler.StepLR(thinwire.AdamW(tiny_gpt().parameters()), 3)
    with pytest.raises(TypeError, match="on this optimizer"):
        optimizer.follow(other, steps=10)
    constant = lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    with pytest.raises(ValueError, match="steps: expected the number of steps"):
        optimizer.follow(constant)
    with pytest.raises(ValueError, match="the scheduler ends at step 21"):
        optimizer.follow(lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=20, cycle_momentum=False), steps=30)
    with pytest.raises(ValueError, match="cycle_momentum=False"):
        optimizer.follow(lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=20))
    optimizer.param_groups[0]["betas"] = (0.9, 0.999)
    optimizer.step()
    with pytest.raises(RuntimeError, match="after the first step"):
        optimizer.follow(constant, steps=10)


def scheduled(rank, words, n_steps, first=0, follow=True, state=None):
    """A model and its optimizer after some steps under a scheduler."""
    model = tiny_gpt(seed=0 if state is None and "resume" not in words else 5)
    optimizer = thinwire.ZeroOneAdam(model.parameters(), lr=1e-2, **words, **EARLY)
    scheduler = lr_scheduler.LambdaLR(optimizer, lambda step: wsd(step) / 1e-2)
    if follow:
        optimizer.follow(scheduler, steps=100)
    if state is not None:
        optimizer.load_state_dict(state[0])
    if first:
        scheduler.load_state_dict(state[1])
        optimizer.param_groups[0]["lr"] = scheduler.get_last_lr()[0]
    for step in range(first, first + n_steps):
        optimizer.zero_grad()
        model.loss(100 * step + rank).backward()
        optimizer.step()
        scheduler.step()
    return model, optimizer, scheduler


def halves(rank, folder):
    """Whether a run that follows a scheduler goes on bit for bit: from a state, and from a checkpoint."""
    whole, optimizer, _ = scheduled(rank, {}, 95)
    assert optimizer.traffic()["rounds"]["coarse"] > 0
    _, optimizer, scheduler = scheduled(rank, {}, 85)
    state = (optimizer.state_dict(), scheduler.state_dict())
    optimizer.save(folder)
    with pytest.raises(ValueError, match=r"call follow\(scheduler\) before this"):
        thinwire.ZeroOneAdam(tiny_gpt().parameters(), lr=1e-2, **EARLY).load_state_dict(state[0])
    loaded, *_ = scheduled(rank, {}, 10, 85, state=state)
    ends = []
    for follow in (True, False):  # the checkpoint knows the schedule
        resumed = tiny_gpt(5)
        optimizer = thinwire.ZeroOneAdam(resumed.parameters(), lr=1e-2, resume=folder, **EARLY)
        again = lr_scheduler.LambdaLR(optimizer, lambda step: wsd(step) / 1e-2)
        again.load_state_dict(state[1])
        optimizer.param_groups[0]["lr"] = again.get_last_lr()[0]
        if follow:
            optimizer.follow(again, steps=100)
            assert optimizer._course.first == 85
        for step in range(85, 95):
            optimizer.zero_grad()
            resumed.loss(100 * step + rank).backward()
            optimizer.step()
            again.step()
        ends.append(resumed)
    return [bool(torch.equal(bits(whole), bits(other))) for other in (loaded, *ends)]


def test_a_followed_run_goes_on_bit_for_bit(tmp_path):
    assert ranks.run(2, halves, str(tmp_path)) == [[True] * 3] * 2


@pytest.mark.parametrize("from_rank0", [False, True])
def test_a_state_of_another_schedule_is_refused_with_a_hint(from_rank0):
    state = thinwire.ZeroOneAdam(tiny_gpt().parameters(), schedule=TABLE).state_dict()
    optimizer = thinwire.ZeroOneAdam(tiny_gpt().parameters())
    optimizer.from_rank0 = from_rank0
    with pytest.raises(ValueError, match=r"the schedules differ.*call follow\(scheduler\) before this"):
        optimizer.load_state_dict(state)


def one_cannot_follow(rank):
    optimizer = thinwire.ZeroOneAdam(tiny_gpt().parameters(), lr=1e-2, deadline=60)
    scheduler = lr_scheduler.LambdaLR(optimizer, lambda step: wsd(step) / 1e-2)
    with pytest.raises(ValueError) as error:
        optimizer.follow(scheduler, steps=-1 if rank else 100)
    optimizer.follow(scheduler, steps=100)
    return str(error.value), optimizer._worker.config["learning_rate"]["warmup"]


def test_one_rank_that_cannot_follow_tells_the_others():
    first, second = ranks.run(2, one_cannot_follow)
    assert first[0].startswith("worker 1 did not build its optimizer: ValueError: steps = -1") and second[0] in first[0]
    assert first[1] == second[1] == 10


def other_lengths(rank):
    optimizer = thinwire.ZeroOneAdam(tiny_gpt().parameters(), lr=1e-2, deadline=60)
    optimizer.follow(lr_scheduler.LambdaLR(optimizer, lambda step: wsd(step) / 1e-2), steps=100 - rank)


def test_schedules_that_differ_between_ranks_are_found():
    for error in ranks.run(2, other_lengths, allowed=[ValueError, RuntimeError]):
        assert "learning_rate" in str(error)
