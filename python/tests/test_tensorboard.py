"""TensorBoard's own reader reads the event files of `thinwire train --tensorboard`."""

import json

import pytest
from command import need, thinwire

reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")

SIZES = "--layers 1 --dim 16 --heads 2 --context 16 --batch 2 --eval-examples 8".split()


def curves(folder):
    found = reader.EventAccumulator(str(folder), size_guidance={reader.SCALARS: 0}).Reload()
    return {tag: [(event.step, event.value) for event in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def metrics(run, kind):
    lines = (json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == kind]


@pytest.fixture
def run(tmp_path):
    need()
    thinwire("train", *SIZES, "--steps", 20, "--eval-every", 5, "--workers", 2, "--out", tmp_path / "run", "--tensorboard", "--quiet")
    return tmp_path / "run"


def check(run, folder, steps):
    found = curves(folder)
    wanted = metrics(run, "step")
    assert len(wanted) == steps
    for tag, key in [("train/loss", "loss"), ("train/learning_rate", "lr"), ("traffic/bytes_total", "bytes_total")]:
        assert [step for step, _ in found[tag]] == list(range(1, steps + 1)), tag
        assert [value for _, value in found[tag]] == pytest.approx([line[key] for line in wanted], rel=1e-6), tag
    evals = metrics(run, "eval")
    assert found["eval/loss"] == [(line["step"], pytest.approx(line["val_loss"], rel=1e-6)) for line in evals]
    assert "eval/accuracy" not in found  # a gpt has none


def test_curves_are_those_of_the_journal(run):
    check(run, run / "tensorboard", 20)


def test_a_resumed_run_replaces_what_a_killed_one_wrote(run, tmp_path):
    thinwire("train", "--resume", run, "--steps", 30, "--tensorboard", "--quiet")
    check(run, run / "tensorboard", 30)
    # A second run into the same folder begins at step 1: nothing of the first is left.
    other = tmp_path / "other"
    thinwire("train", *SIZES, "--steps", 7, "--workers", 1, "--out", other, "--tensorboard", run / "tensorboard", "--quiet")
    check(other, run / "tensorboard", 7)


def test_a_comparison_has_a_folder_for_each_optimizer(tmp_path):
    need()
    all_runs, events = tmp_path / "all", tmp_path / "events"
    names = ["adam", "zero-one-adam"]
    thinwire(
        "compare", *SIZES, "--steps", 5, "--workers", 2, "--optimizers", ",".join(names), "--out", all_runs, "--tensorboard", events, "-q"
    )
    for name in names:
        check(all_runs / name, events / name, 5)
