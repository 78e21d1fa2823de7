"""`python -m thinwire.device`: does this GPU give the engine's bits, and how fast?

Runs every kernel and the engine's own on the same values, and compares all bits. On a GPU it also measures each kernel, in GB/s, beside
a copy on the device. Without a GPU, `--interpret` compares on the CPU by Triton's interpreter: that proves the kernels' arithmetic, not
a GPU. Exit code: 0 all bits are equal, 1 some differ, 2 there is nothing to run on.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from typing import Any

SUITES = ("sign", "levels", "casts", "owner", "sources", "passes", "reductions", "refusals")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m thinwire.device", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--interpret", action="store_true", help="compare on the CPU, by Triton's interpreter (minutes)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--only", choices=SUITES, action="append", help="run this part of the comparison; may be repeated")
    parser.add_argument("--values", type=int, default=1 << 26, help="length of the vectors that are measured (default %(default)s)")
    options = parser.parse_args(arguments)
    missing = _missing(options.interpret)
    if missing:
        print(json.dumps({"error": missing}) if options.json else missing)
        return 2
    if options.interpret and os.environ.get("TRITON_INTERPRET") != "1":
        # Triton reads it when it is imported, and PyTorch may have done that already.
        again = [sys.executable, "-m", "thinwire.device", *(sys.argv[1:] if arguments is None else arguments)]
        return subprocess.call(again, env={**os.environ, "TRITON_INTERPRET": "1"})
    return _prove(options)


def _missing(interpret: bool) -> str:
    try:
        import torch
    except ImportError:
        return "PyTorch is not installed. Install it with: pip install torch"
    try:
        import triton  # noqa: F401
    except ImportError:
        return "Triton is not installed. It comes with PyTorch's wheels for GPUs; or: pip install triton"
    if interpret or torch.cuda.is_available():
        return ""
    return (
        "No GPU was found that PyTorch can use (torch.cuda.is_available() is False). "
        "`python -m thinwire.device --interpret` compares the kernels with the engine on the CPU instead, in some minutes."
    )


def _prove(options: argparse.Namespace) -> int:
    import numpy
    import torch
    import triton

    from . import measure, twins

    numpy.seterr(all="ignore")  # infinities and NaN are among the values
    device = "cpu" if options.interpret else "cuda"
    report: dict[str, Any] = {
        "device": "Triton's interpreter" if options.interpret else torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "suites": [],
        "differences": [],
    }
    say = (lambda *_, **__: None) if options.json else print
    say(f"{report['device']}, PyTorch {torch.__version__}, Triton {triton.__version__}")
    for name in options.only or SUITES:
        bench, began = twins.Bench(device), time.monotonic()
        twins.SUITES[name](bench)
        differ = [outcome for outcome in bench.outcomes if not outcome.equal]
        report["suites"].append({"name": name, "comparisons": len(bench.outcomes), "differ": len(differ)})
        report["differences"] += [{"name": outcome.name, "detail": outcome.detail} for outcome in differ]
        verdict = "all bits equal" if not differ else f"{len(differ)} DIFFER"
        say(f"  {name:<11} {len(bench.outcomes):5} comparisons, {verdict} ({time.monotonic() - began:.1f} s)", flush=True)
        for outcome in differ[:5]:
            say(f"    {outcome.name}: {outcome.detail}")
    report["equal"] = not report["differences"]
    if not options.interpret:
        report["bandwidth"] = measure.all_kernels(device, options.values)
        for row in report["bandwidth"]:
            say(f"  {row['kernel']:<34} {row['gigabytes_per_second']:8.0f} GB/s  {row['of_copy']:5.0%} of a copy")
    say("All bits are equal to the engine's." if report["equal"] else "This device does NOT give the engine's bits.")
    if options.json:
        print(json.dumps(report))
    return 0 if report["equal"] else 1


if __name__ == "__main__":
    sys.exit(main())
