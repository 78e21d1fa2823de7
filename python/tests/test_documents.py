"""The programs in the documents run as they stand."""

import pathlib
import re
import subprocess
import sys

import pytest
import torch

import thinwire

ROOT = pathlib.Path(__file__).parents[2]


def programs(document, language="python"):
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / document).read_text(), re.M | re.S)


def test_the_readmes_program_trains_on_two_ranks(tmp_path):
    program = next(text for text in programs("README.md") if "dist.init_process_group" in text)
    file = tmp_path / "train.py"
    # It prints nothing; whoever reads it wants to know that it has learned.
    last = "dist.destroy_process_group()"
    assert program.rstrip().endswith(last)
    file.write_text(program.replace(last, f"print(f'loss {{loss.item():.4f}}')\n{last}"))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(file)]
    done = subprocess.run(torchrun, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"loss (\d+\.\d{4})", done.stdout)]  # two ranks may share a line
    assert len(losses) == 2 and max(losses) < 1.0, losses  # 64 at the start


@pytest.mark.parametrize("number", [0, 1])
def test_the_lines_for_people_from_deepspeed_build_what_they_say(number):
    program = programs("docs/deepspeed.md")[number]
    there = {"thinwire": thinwire, "model": torch.nn.Linear(3, 2)}
    exec(program, there)
    words = programs("docs/deepspeed.md", "json")[number]
    for name, value in re.findall(r'"(\w+_(?:step|scaler|clipper))": (\d+)', words):
        assert f"{name}={value}" in program
    assert f'"type": "{type(there["optimizer"]).__name__}"' in words
