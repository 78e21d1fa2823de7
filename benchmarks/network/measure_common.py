"""What `measure` and `predict` share: the binary, its output, the optimizers' names."""

import json
import os
from pathlib import Path

OPTIMIZERS = {
    "adam": "Adam",
    "one-bit-adam": "1-bit Adam",
    "zero-one-adam": "0/1 Adam",
    "efficient-adam": "Efficient-Adam",
}

def binary() -> str:
    return str(Path(os.environ.get("THINWIRE", "target/release/thinwire")).resolve())


def shown(rate: str) -> str:
    return rate.replace("mbit", " Mb/s").replace("gbit", " Gb/s")


def parsed(result) -> dict:
    """The JSON that a command printed, after whatever mpirun printed."""
    if result.exit_code != 0:
        raise SystemExit(f"the command failed with {result.exit_code}:\n{result.output}")
    return json.loads(result.output[result.output.index("{") :])
