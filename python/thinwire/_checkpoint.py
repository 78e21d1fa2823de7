"""Checkpoints of an optimizer: a folder of all ranks, and PyTorch's ``state_dict``, which programs and frameworks save in their own ways.

What a state looks like is in ``_states.py``; here is who gets which, and what is refused, on all ranks alike.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor

from . import _frameworks, _parts, _rates, _states
from ._parts import Parts
from ._replica import Replica

log = logging.getLogger("thinwire")


class Checkpointed(Replica):
    """An optimizer that is saved and gone on from."""

    _fixed: list[dict[str, Any]]  # of each param group, what it keeps for good
    _built: bool

    from_rank0 = False  # whether load_state_dict() may do with rank 0's state alone; set it on the optimizer

    _models_are_consensus = False  # whether someone sees to it that saved models are

    _gathered: tuple[Any, dict[str, Any]] | None = None  # the moment, and what the other ranks' states had of their own

    _warned: frozenset[str] = frozenset()  # of what has been warned already

    def save(self, dir: str | os.PathLike[str]) -> None:
        """Saves a checkpoint of parameters and optimizer to a folder that all ranks can read. All ranks together.

        ``resume=dir`` at construction goes on from it, also with another number of ranks, with the learning rates of now. A scheduler
        has a state of its own, which is not in it.
        """
        dir = dir if self._sharding is None else self._sharding.folder(dir)
        with self._training():
            self._worker.save(os.fspath(dir), self._flat.vector)
        _rates.save(dir, self._worker.steps, self._worker.rank, self.param_groups)

    def state_dict(self) -> dict[str, Any]:
        """The state of this rank: what PyTorch keeps, and the engine's vectors, residuals and parameters, under a key of the rank's own.

        Residuals differ between ranks: every rank saves its own state and loads its own, or rank 0 saves all of them after
        :meth:`consolidate_state_dict`. ``torch.distributed.checkpoint`` saves every rank's by itself, because the keys differ; with
        another number of ranks it misses keys, and there is :meth:`save`.

        Raises
        ------
        RuntimeError
            If an error or Ctrl-C has ended a step halfway: that is no state to go on from.
        """
        if self._sharding is not None:
            mine, cut = self._state_of_mine(), super().state_dict()
            cut["state"] = self._by_parameter(mine, cut)
            return cut
        state = _states.State(super().state_dict())
        state["state"] = {}
        state[_states.MINE] = {self._place(): self._state_of_mine()}
        state.by_parameter = lambda state: self._by_parameter(state[_states.MINE][self._place()], state)
        if self._gathered is not None and self._gathered[0] == self._moment():
            if self._gathered[1]:
                state[_states.OTHERS] = self._gathered[1]
        elif self._worker.rank == 0 and self._worker.size > 1:
            state.before_pickling = self._warn_of_rank_0_alone
        return state

    def _by_parameter(self, mine: dict[str, Any], state: dict[str, Any]) -> dict[Any, Any]:
        """The state `mine` cut by parameter, as ``torch.distributed.checkpoint`` and its helpers want it in `state`."""
        states = self._parts().of(mine["values"], mine["params"])
        numbers = {id(param): number for number, param in enumerate(p for group in self.param_groups for p in group["params"])}
        state["param_groups"][0][_parts.NUMBERS] = _parts.configuration(self._worker.config)
        return {numbers[id(param)]: part for param, part in zip(self._flat.params, states, strict=True)}

    def _warn_of_rank_0_alone(self) -> None:
        if remedies := _frameworks.saving_rank_0():
            self._warn_once(
                "this checkpoint has the optimizer state of rank 0 alone, and training resumes from it only if every other rank saves "
                f"its own: {'; '.join(remedies)}"
            )

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned |= {text}
            log.warning("%s", text)

    def _parts(self) -> Parts:
        return Parts(self._worker, self._flat.params, self._sharding)

    def _load_parts(self, state_dict: dict[str, Any]) -> None:
        """Goes on from a state that is cut by parameter, of any number of ranks and any sharding. All ranks together."""
        before, parts = super().state_dict(), self._parts()
        states, problem = _attempt(lambda: self._states_in(state_dict, parts))
        try:
            self._raise_everywhere(problem)
            regrouped = parts.is_regrouped(states["of"])
            values, params = parts.values(states["of"], self._wire)
            with torch.no_grad():
                if params is None:
                    self._flat.take_params()
                else:
                    self._flat.values.copy_(params)
            if regrouped:
                self._worker._regroup_state(values, self._flat.values)
            else:
                self._worker._restore_state(values)
        except BaseException:
            super().load_state_dict(before)  # what is refused has changed nothing
            raise
        finally:
            self._mark_state()
        self._gathered = None
        with torch.no_grad():
            self._flat.give_params()
        if regrouped and self._worker.rank == 0:
            log.info(
                "the state is of other workers: the mean of their residuals and local steps is kept, spread over %d", self._worker.size
            )

    def _states_in(self, state_dict: dict[str, Any], parts: Parts) -> dict[str, Any]:
        """The state of each trained parameter, if this rank could go on from it; the parameter groups are taken over."""
        groups = [dict(group) for group in state_dict["param_groups"]]
        keys = [key for group in groups for key in group["params"]]
        params = [param for group in self.param_groups for param in group["params"]]
        if len(keys) != len(params):
            raise ValueError(f"it is of {len(keys)} parameters, the optimizer has {len(params)}")
        by_param = {id(param): state_dict["state"].get(key) for key, param in zip(keys, params, strict=True)}
        states = [by_param[id(param)] for param in self._flat.params]
        if None in states:
            raise ValueError(f"the state has nothing of parameter {states.index(None)}")
        parts.check(states)
        saved = [group.pop(_parts.NUMBERS, None) for group in groups][0]
        super().load_state_dict({"state": {}, "param_groups": groups})
        self._check_fixed()
        if saved is not None:
            config = _parts.comparable(saved, self._worker.config)
            with self._hint_about_schedules({"config": config}):
                self._worker._check_configuration(config)
        return {"of": states}

    def _raise_everywhere(self, problem: Exception | None) -> None:
        """Raises `problem`, or what another rank has, on all ranks of all replicas."""
        text = "" if problem is None else f"{type(problem).__name__}: {problem}"
        across = next((note for note in self._worker.gather(text.encode()) if note), b"")
        found = next((note for note in self._worker.gather_inside(across) if note), b"")
        if problem is not None:
            raise problem
        if found:
            raise ValueError(f"another rank cannot go on from its state, so none does: {found.decode()}")

    def _state_of_mine(self) -> dict[str, Any]:
        types = {"f4": torch.float32, "f8": torch.float64}
        mine = self._worker._state(lambda count, kind: torch.empty(count, dtype=types[kind]))
        if self._own is not None:
            mine["consensus"] = self._flat.values.to("cpu", copy=True)
        with self._training():
            mine["params"] = self._flat.values.to("cpu", copy=True)
        return mine

    def consolidate_state_dict(self) -> None:
        """Has rank 0's next :meth:`state_dict` hold the states of all ranks, so that one file serves them all. All ranks together.

        As in ``torch.distributed.optim.ZeroRedundancyOptimizer``. Rank 0 keeps what the others' states have of their own, right after
        a sync little more than their residuals, until the next step.
        """
        if self._sharding is not None:
            raise RuntimeError(
                "consolidate_state_dict() of a sharded model: no rank could hold it. Accepted: torch.distributed.checkpoint, with "
                "get_optimizer_state_dict (docs/fsdp.md), or optimizer.save(dir)"
            )
        self._gathered = None
        if self._wire is not None:
            away = self._own is None and not self._models_are_consensus and not self._worker.is_synced
            if away and self._worker.rank == 0 and (remedies := _frameworks.consolidating()):
                self._warn_once(
                    "a model that is saved now is rank 0's own, and not the consensus: save it inside optimizer.consensus(); "
                    + "; ".join(remedies)
                )
            self._gathered = self._moment(), _states.gathered(self._state_of_mine(), self._worker, self._wire)

    def _moment(self) -> Any:
        """What a step and a sync change."""
        return self._worker.steps, self._worker.is_synced

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from a state of :meth:`state_dict`, parameters included. All ranks together.

        If ``optimizer.from_rank0`` was set to True and not every rank finds its own state, all ranks load rank 0's, of any number of
        ranks: moments and schedule are kept, residuals start at zero, and a warning says so. Of a state that was taken between two
        syncs of 0/1 Adam the local steps of rank 0 count as everyone's; its parameters are those of the consensus if it was taken
        inside :meth:`consensus`, otherwise rank 0's own.

        Raises
        ------
        ValueError
            If it holds no state of this rank among as many, or one of another configuration. If one rank refuses its state, none loads.
        """
        self._check_own("load_state_dict()")
        if _states.MINE not in state_dict and _in_parts(state_dict):
            return self._load_parts(state_dict)
        before = super().state_dict()
        own, problem = _attempt(lambda: self._mine_of(state_dict))
        first, of_first = _attempt(lambda: self._first_of(state_dict)) if self.from_rank0 else ({}, None)
        _, of_groups = _attempt(lambda: self._load_groups(state_dict))
        try:
            told = self._tell_problems(problem or of_groups, of_first or of_groups)
            if all(not theirs["own"] for theirs in told):
                self._worker.load_state_dict(own)
                params = own["params"]
            elif all(theirs["from_rank0"] for theirs in told):
                if any(theirs["first"] for theirs in told):
                    raise _worst("first", of_first or of_groups, told)
                params = self._adopt(first)
            else:
                raise _worst("own", problem or of_groups, told)
        except BaseException:
            super().load_state_dict(before)  # what is refused has changed nothing
            raise
        finally:
            self._mark_state()
        self._gathered = None
        with torch.no_grad():
            self._flat.values.copy_(params)
            self._flat.give_params()

    def _load_groups(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        groups = [{key: value for key, value in group.items() if key != _parts.NUMBERS} for group in state_dict["param_groups"]]
        super().load_state_dict({"state": {}, "param_groups": groups})
        self._check_fixed()
        return {}

    def _tell_problems(self, own: Exception | None, first: Exception | None) -> list[dict[str, Any]]:
        """What every rank has against loading its own state, and against loading rank 0's."""
        texts = {"own": own and f"{type(own).__name__}: {own}", "first": first and f"{type(first).__name__}: {first}"}
        note = json.dumps({**texts, "from_rank0": bool(self.from_rank0)})
        return [json.loads(theirs) for theirs in self._worker.gather(note.encode())]

    def _adopt(self, first: dict[str, Any]) -> Tensor:
        """Goes on from rank 0's state; the parameters to go on from."""
        with torch.no_grad(), self._flat.lent(first["params"]) as params:
            self._worker._adopt(first, params)
        if self._worker.rank == 0:
            log.warning(
                "from_rank0: all %d ranks go on from the state of rank 0 of %d alone: moments and schedule are kept, residuals start at "
                "zero, and the parameters are %s",
                self._worker.size,
                first["size"],
                "the consensus" if "consensus" in first else "rank 0's own",
            )
        return cast(Tensor, first.get("consensus", params))

    def _mine_of(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """This rank's own part of a state, if it could go on from it."""
        _check_is_ours(state_dict)
        mine = _states.own(state_dict, self._worker.rank, self._worker.size)
        if mine is None:
            raise ValueError(
                f"it holds the state of {_states.places(state_dict)}, and this is {self._place()}: every rank loads its own state. To have "
                f"all in one file, {_frameworks.remedies()}. To go on from rank 0's alone, with residuals of zero, "
                "set optimizer.from_rank0 = True before loading; with another number of ranks there is also save(dir), then resume=dir"
            )
        self._check_params(mine)
        with self._hint_about_schedules(mine):
            self._worker._check(mine)
        return mine

    def _first_of(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Rank 0's part of a state, if this rank could go on from it."""
        _check_is_ours(state_dict)
        first = _states.first(state_dict)
        if first is None:
            raise ValueError(f"from_rank0: expected the state of rank 0, found that of {_states.places(state_dict)}")
        self._check_params(first)
        with self._hint_about_schedules(first):
            self._worker._check_one(first)
        return first

    @contextmanager
    def _hint_about_schedules(self, state: dict[str, Any]) -> Iterator[None]:
        """If `state` is refused and has another schedule, the error says what to do."""
        try:
            yield
        except ValueError as error:
            if state.get("config", {}).get("learning_rate") == self._worker.config.get("learning_rate"):
                raise
            hint = "the schedules differ: build the optimizer with the same schedule, or call follow(scheduler) before this"
            raise ValueError(f"{error}; {hint}") from None

    def _check_params(self, state: dict[str, Any]) -> None:
        params = state.get("params")
        if params is None:
            raise ValueError("the state has no params")
        if params.shape != self._flat.values.shape:
            raise ValueError(f"it is of {params.numel()} parameters, the model has {self._flat.values.numel()}")

    def _mark_state(self) -> None:
        """An optimizer without any state gets a step of ``torch.distributed.checkpoint``'s own, to make some; and of a flattened one it
        takes back only the names that it finds here. The values are the engine's, and in :meth:`state_dict`."""
        state = cast(dict[Any, Any], self.state)
        state["thinwire"] = {"in": 'state_dict()["thinwire"]'}
        for param, names in zip(self._flat.params, self._parts().names(), strict=True) if self._built else ():
            state[param] = dict.fromkeys(names, "in state_dict()")

    def _place(self) -> str:
        return _states.place(self._worker.rank, self._worker.size)

    def _check_fixed(self) -> None:
        for group, then in zip(self.param_groups, self._fixed, strict=True):
            now = fixed(group)
            if now != then:
                word = next(word for word in now if now[word] != then[word])
                raise ValueError(
                    f"{word} was {then[word]} when the optimizer was built, and is {now[word]} now; only lr may change "
                    "(OneCycleLR and CyclicLR: cycle_momentum=False)"
                )


def _attempt(work: Callable[[], dict[str, Any]]) -> tuple[dict[str, Any], Exception | None]:
    """What `work` returns, or what it raises: whatever that is, the other ranks must not wait for this one."""
    try:
        return work(), None
    except Exception as error:
        return {}, error


def _worst(which: str, mine: Exception | None, told: list[dict[str, Any]]) -> Exception:
    """This rank's problem, or the first that another has told."""
    worker, words = next((worker, theirs[which]) for worker, theirs in enumerate(told) if theirs[which])
    return mine or ValueError(f"worker {worker} could not load its state, so none has: {words}")


def _in_parts(state_dict: dict[str, Any]) -> bool:
    """Whether a state is cut by parameter."""
    states = state_dict.get("state", {})
    return any(isinstance(state, dict) and _parts.NUMBERS in state for state in states.values())


def _check_is_ours(state_dict: dict[str, Any]) -> None:
    if not isinstance(state_dict.get(_states.MINE), dict):
        raise ValueError(
            "not a state of a thinwire optimizer; accepted: what state_dict() of one gave on this rank. The moments of another "
            "optimizer (torch.optim.AdamW) cannot be taken over: a new one gathers its own, best with a short warm-up of the rate"
        )


def fixed(group: dict[str, Any]) -> dict[str, Any]:
    """What a param group keeps for good. A state that was written down may give a tuple back as a list."""
    return {"betas": tuple(group["betas"]), "eps": group["eps"], "weight_decay": group["weight_decay"]}
