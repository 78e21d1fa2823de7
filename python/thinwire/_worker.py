"""The worker on NumPy arrays: the engine's, with its state as a dict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from . import _schedule, _thinwire
from ._guess import guessing

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._options import Name, WorkerOptions

FORMAT = "thinwire-worker"
VERSION = 1


class Worker(_thinwire.Worker):
    __doc__ = _thinwire.Worker.__doc__

    def __new__(cls, name: str, *, parameters: Any, group: _thinwire.Group | None = None, device: Any = None, **config: Any) -> Worker:
        schedule, steps = config.pop("schedule", None), config.pop("steps", None)
        config, _ = _schedule.take(config, schedule, steps)
        with guessing(("schedule", "steps")):
            return cast(Worker, super().__new__(cls, name, parameters=parameters, group=group, device=device, **config))

    if TYPE_CHECKING:  # for editors and type checkers: the keywords

        def __init__(
            self,
            name: Name,
            *,
            parameters: Any,
            group: _thinwire.Group | None = None,
            device: Any = None,
            **config: Unpack[WorkerOptions],
        ) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        """Everything that makes this worker's next step what it is, but its parameters: plain data and NumPy arrays.

        Residues are each rank's own: every rank saves its own state and loads its own.
        """
        import numpy

        return self._state(lambda count, kind: numpy.empty(count, dtype=kind))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a state of :meth:`state_dict`. All workers together, and with the parameters of that moment.

        Raises
        ------
        ValueError
            If the state is of another rank, number of workers, or configuration, or not whole.
        """
        self._check(state)
        self._restore_state(state["values"])

    def _check(self, state: dict[str, Any]) -> None:
        """Raises what :meth:`load_state_dict` would, by this worker alone and without a change. One that has not met the others yet
        does not know how long vectors have to be."""
        _check_format(state)
        place = (state["rank"], state["size"], list(state["hosts"]))
        if place != (self.rank, self.size, self.hosts):
            raise ValueError(
                f"the state is of worker {state['rank']} of {state['size']} on hosts {state['hosts']}, this is worker "
                f"{self.rank} of {self.size} on hosts {self.hosts}; with other workers go on from a checkpoint (save, resume)"
            )
        self._check_state(state["config"], state["values"])

    def _check_one(self, state: dict[str, Any]) -> None:
        """Raises what :meth:`_adopt` would, by this worker alone and without a change."""
        _check_format(state)
        self._check_state_of_one(state["config"], state["values"])

    def _adopt(self, state: dict[str, Any], params: Any) -> None:
        """Goes on from the state of one worker of any group, and from its `params`, which are written to. All workers together, from
        the same one. Moments and schedule are kept, residuals start at zero, and that worker's local steps count for all."""
        self._check_one(state)
        self._adopt_state(state["values"], params)

    def _state(self, empty: Any) -> dict[str, Any]:
        """The state in arrays that `empty(count, kind)` makes, `kind` being "f4" or "f8"."""
        values = {name: None if kind == "word" else empty(count, kind) for name, kind, count in self._state_layout()}
        self._copy_state(values)
        return {
            "format": FORMAT,
            "version": VERSION,
            "config": self.config,
            "rank": self.rank,
            "size": self.size,
            "hosts": self.hosts,
            "values": values,
        }


def _check_format(state: dict[str, Any]) -> None:
    if state.get("format") != FORMAT or state.get("version") != VERSION:
        raise ValueError(f"not a state of a thinwire worker, version {VERSION}")
