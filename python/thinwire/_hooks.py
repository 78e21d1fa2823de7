"""Hooks on modules and parameters that go when the object they were made for goes."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any


def leave_with(owner: Any, hooks: Iterable[Any]) -> None:
    """Removes `hooks`, also those that come into the list later, when `owner` is gone. They must not hold it."""
    weakref.finalize(owner, _remove, hooks)


def _remove(hooks: Iterable[Any]) -> None:
    for hook in hooks:
        hook.remove()
