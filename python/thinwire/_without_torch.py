"""What stands in for an optimizer where PyTorch is not installed: something to read about, and an error for whoever builds one."""

from __future__ import annotations

from functools import cache
from typing import Any, NoReturn

REMEDY = "needs PyTorch 2.6 or newer, which is not installed: pip install torch. thinwire.Worker works without it, on NumPy arrays"


@cache
def stand_in(name: str, summary: str) -> type:
    def build(self: Any, *_: Any, **__: Any) -> NoReturn:
        raise ImportError(f"thinwire.{name} {REMEDY}", name="torch")

    doc = f"{summary}\n\nIt {REMEDY}."
    return type(name, (), {"__init__": build, "__doc__": doc, "__module__": "thinwire"})
