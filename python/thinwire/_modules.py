"""The modules that hold the parameters: what the parameters are called, whether they are still there, which buffers are beside them.

``model.parameters()`` tells neither names nor modules, so the modules are searched for once, when the optimizer is built.
"""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from ._listing import REMEDY_LATER, sharded_by

log = logging.getLogger("thinwire")

DEPTH = 100  # of modules inside each other; a module may, by mistake, be inside itself


class _Home(NamedTuple):
    module: weakref.ref[nn.Module]
    key: str


class Modules:
    """The modules around `params`."""

    def __init__(self, params: Sequence[Tensor]) -> None:
        index = {id(param): number for number, param in enumerate(params)}
        self._homes: list[_Home | None] = [None] * len(params)
        self._params = list(params)
        self._warned = False
        parents: dict[int, tuple[nn.Module, str]] = {}
        # Asks the types alone: strange objects do strange things when asked.
        for module in [found for found in gc.get_objects() if issubclass(type(found), nn.Module)]:
            for key, child in _table(module, "_modules").items():
                parents.setdefault(id(child), (module, key))
            for key, param in _table(module, "_parameters").items():
                number = index.get(id(param))
                if number is not None and self._homes[number] is None:
                    self._homes[number] = _Home(weakref.ref(module), key)
        self.names = [None if home is None else _path(home, parents) for home in self._homes]

    def check_present(self, missing: Sequence[int]) -> None:
        """Looks at the parameters with these numbers, which got no gradient: is it because their modules have others by now?"""
        for number in missing:
            home, param = self._homes[number], self._params[number]
            module = None if home is None else home.module()
            if home is None or module is None or module._parameters.get(home.key) is param:
                continue
            if any(other is param for other in module.parameters()):  # moved by torch.nn.utils.parametrize
                continue
            now = module._parameters.get(home.key)
            by = None if now is None else sharded_by(now)
            if by is None and getattr(module, "_is_fsdp_managed_module", False):
                by = "FlatParameter of FSDP"
            if by is not None:
                raise RuntimeError(
                    f"parameter {number} ({self.names[number]}) was replaced by a shard ({by}) after the optimizer was built, and "
                    f"the optimizer would train the old one. {REMEDY_LATER}"
                )
            if not self._warned:
                self._warned = True
                log.warning(
                    "parameter %d (%s) has no gradient, and its module (%s) holds another parameter by now: the optimizer trains the "
                    "old one. Build the optimizer after the model is complete",
                    number,
                    self.names[number],
                    type(module).__name__,
                )

    def running_statistics(self) -> str | None:
        """The name of a module among them whose running statistics are each rank's own, if there is one."""
        for name, home in zip(self.names, self._homes, strict=True):
            module = None if home is None else home.module()
            if isinstance(module, nn.SyncBatchNorm) or module is None or name is None:
                continue
            if any(module._buffers.get(key) is not None for key in ("running_mean", "running_var")):
                return f"{name.rpartition('.')[0] or 'the model'} ({type(module).__name__})"
        return None


def _table(module: nn.Module, name: str) -> dict[str, Any]:
    """One of the dicts that a module keeps; nothing of one that is not built yet, or keeps something else (TorchScript)."""
    table = vars(module).get(name)
    return table if isinstance(table, dict) else {}


def _path(home: _Home, parents: dict[int, tuple[nn.Module, str]]) -> str:
    """The name of a parameter, from the outermost module."""
    keys, at = [home.key], home.module()
    for _ in range(DEPTH):
        if id(at) not in parents:
            break
        at, key = parents[id(at)]
        keys.append(key)
    return ".".join(reversed(keys))


def given_names(groups: Sequence[dict[str, Any]], trained: Sequence[Tensor]) -> list[str] | None:
    """The names of `trained`, if the optimizer was given ``model.named_parameters()``."""
    names = {id(param): name for group in groups for param, name in zip(group["params"], group.get("param_names", ()), strict=False)}
    return [names[id(param)] for param in trained] if trained and all(id(param) in names for param in trained) else None
