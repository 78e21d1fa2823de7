"""The optimizers for PyTorch: ``torch.optim.Optimizer`` on the outside, the engine on the inside.

Each takes the place of ``torch.optim.AdamW`` *and* of DDP: every rank computes the gradient of its own batch on the bare model, and
``step()`` does the averaging, coded as the optimizer has it. What PyTorch and the engine disagree on is an error, never a guess.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NoReturn, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from . import _frameworks, _rates, _states, _thinwire, _words
from ._ddp import Wrappers
from ._flat import Flat
from ._guess import guessing
from ._worker import Worker

log = logging.getLogger("thinwire")

TELLING = 10.0  # seconds for the others to come and hear why this rank does not

OFF_SCHEDULE = 0.1  # of its peak

A_YEAR = 366 * 24 * 3600.0  # seconds

CHECKPOINT_HELPERS = "torch.distributed.checkpoint.state_dict"


class _Compressed(Optimizer):
    """What the four have in common: all but their names."""

    _name: str
    _flat: Flat
    _wrappers: Wrappers

    from_rank0 = False  # whether load_state_dict() may do with rank 0's state alone; set it on the optimizer

    _models_are_consensus = False  # whether someone sees to it that saved models are

    _gathered: tuple[Any, dict[str, Any]] | None = None  # the moment, and what the other ranks' states had of their own

    # GradScaler then calls step() on every rank, also where a gradient is infinite, and leaves the rest to us.
    _step_supports_amp_scaling = True

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        process_group: Any = None,
        init: Literal["check", "broadcast"] = "check",
        deadline: float = 300.0,
        resume: str | os.PathLike[str] | None = None,
        **config: Any,
    ) -> None:
        try:
            _words.check_folder(resume)
            words = self._prepare(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}, init, deadline, config)
        except Exception as error:
            _tell_others(process_group, error)
            raise
        self._wire = _connect(process_group, deadline)
        if not _in_a_crowd():  # there the engine looks itself, at every step
            self._flat.look_at_gradients()
        self._worker = self._meet(words, init, deadline, resume)
        self._peak = self._worker.config.get("learning_rate", {}).get("peak", 0.0)
        self._skips = self._worker.config["non_finite"] == "skip"
        self._next_told = 1  # how many steps left out are the next to be told
        self._built = True
        log.info("%s of %d parameters, worker %d of %d", self._name, self._worker.parameters, self._worker.rank, self._worker.size)

    def _prepare(self, params: Any, defaults: dict[str, Any], init: str, deadline: float, config: dict[str, Any]) -> dict[str, Any]:
        """All that needs no other rank. The engine's configuration."""
        if init not in ("check", "broadcast"):
            raise ValueError(f'init = {init!r}: accepted: "check", "broadcast"')
        for word in _words.ELSEWHERE:
            if word in config:
                raise ValueError(f"{word}: parameter groups and the name are given PyTorch's way, by param_groups and the class")
        config = _words.without_theirs(config)
        if isinstance(deadline, bool) or not isinstance(deadline, (int, float)) or not 0 < deadline <= A_YEAR:
            raise ValueError(f"deadline = {deadline!r}: accepted: seconds, more than 0, at most a year's")
        self._built = False
        super().__init__(params, defaults)
        self._mark_state()
        for group in self.param_groups:
            _words.check_group(group)
            group["betas"] = tuple(group["betas"])
        self._amp = self._off_schedule = False
        self._own: Tensor | None = None  # this rank's parameters, while others take their place
        self._inside = 0  # how many consensus() blocks
        self._trained = [[param for param in group["params"] if param.requires_grad] for group in self.param_groups]
        self._frozen = [param for group in self.param_groups for param in group["params"] if not param.requires_grad]
        flat = [param for group in self._trained for param in group]
        words = self._words(config)
        with guessing(_words.OURS, _words.ELSEWHERE):
            _thinwire.resolve(words)  # a word that does not fit is an error before anything is sent
        self._wrappers = Wrappers(flat)
        self._flat = Flat(flat)
        self._fixed = [_fixed(group) for group in self.param_groups]
        return words

    def _words(self, config: dict[str, Any]) -> dict[str, Any]:
        """The engine's configuration."""
        first = self.param_groups[0]
        for group in self.param_groups:
            for word in ("betas", "eps"):
                if group[word] != first[word]:
                    raise ValueError(f"{word} = {group[word]}: must be the same in all param groups, and is {first[word]} in the first")
        words = {**config, "name": self._name, "betas": list(first["betas"]), "eps": first["eps"]}
        if len(self.param_groups) == 1:
            return {**words, "weight_decay": first["weight_decay"]}
        lengths = [sum(param.numel() for param in trained) for trained in self._trained]
        decays = [group["weight_decay"] for group in self.param_groups]
        groups = [{"length": length, "weight_decay": decay} for length, decay in zip(lengths, decays, strict=True)]
        return {**words, "groups": groups}

    def _meet(self, words: dict[str, Any], init: str, deadline: float, resume: Any) -> Worker:
        group = _thinwire.solo() if self._wire is None else _thinwire.wire_group(self._wire, deadline)
        if init == "broadcast" and self._wire is not None and resume is None:
            self._wire.broadcast(self._flat.values)
        if resume is not None:
            worker = Worker(**words, parameters=self._flat.values.numel(), group=group)
            worker.resume(os.fspath(resume), self._flat.vector)
            _rates.take(resume, worker.steps, self.param_groups)
        else:
            try:
                worker = Worker(**words, parameters=self._flat.vector, group=group)
            except (ValueError, RuntimeError) as error:
                if "the parameters to start from" in str(error):
                    hint = 'seed all ranks alike, load the same checkpoint, or take rank 0\'s by init="broadcast"'
                    raise ValueError(f"{error}; {hint}") from None
                raise
        self._give()
        return worker

    @torch.no_grad()
    def _give(self) -> None:
        self._flat.give_params()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step: averages over all ranks what this optimizer averages, and moves the parameters.

        Parameters
        ----------
        closure : callable, optional
            Computes the loss and the gradients anew, and returns the loss.

        Raises
        ------
        FloatingPointError
            If a gradient is infinite or NaN, with ``non_finite="error"`` and no GradScaler. The error names the worker.
        TimeoutError, ConnectionError
            If a worker is silent past the deadline, or gone. The error names it.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._take_step()
        return loss

    @torch._disable_dynamo  # type: ignore[attr-defined]
    def _take_step(self) -> None:
        self._check()
        self._gathered = None
        with torch.no_grad():
            self._flat.take_params()
            grads = self._flat.take_grads(self._scale())
            rates = [float(group["lr"]) for group in self.param_groups]
            own = None if all(rate == rates[0] for rate in rates) else rates
            self._compare_with_schedule(rates[0])
            self._worker._step_in_pieces(self._flat.vector, self._flat.lengths, grads.addresses, rates[0], own, grads.finite)
            self._flat.give_params()
        if self._skips and not self._amp and not grads.finite:  # a scaler's infinities are ordinary
            self._tell_left_out()

    def _tell_left_out(self) -> None:
        """A rank that is left out at every step would be missed by nobody: told at the first, the tenth, the hundredth."""
        left_out = self._worker.traffic()["left_out"]
        if left_out >= self._next_told:
            self._next_told *= 10
            log.warning(
                "step %d: the gradient of worker %d is infinite or NaN and is left out of the mean; so far in %d of its steps",
                self._worker.steps - 1,
                self._worker.rank,
                left_out,
            )

    def _compare_with_schedule(self, lr: float) -> None:
        """0/1 Adam skips rounds by the rate it is given; `learning_rate` is what it was told to expect."""
        expected = None if self._off_schedule else self._worker._expected_rates
        if expected is None:
            return
        # Whether a schedule begins one step earlier or later is a matter of taste.
        around, room = sorted(expected), OFF_SCHEDULE * self._peak
        if not around[0] - room <= lr <= around[-1] + room:
            self._off_schedule = True
            log.warning(
                "step %d: lr is %g, and learning_rate says %g; rounds go by lr, so plan() will not be what is sent. "
                "Set lr by a scheduler of the same shape",
                self._worker.steps,
                lr,
                expected[1],
            )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As in ``torch.optim.Optimizer``."""
        super().zero_grad(set_to_none)
        if self._built:
            self._wrappers.forget()

    def _scale(self) -> float:
        """What GradScaler has multiplied the loss by, if it has not taken it out again."""
        if not self._amp and getattr(self, "found_inf", None) is not None:
            # With a scaler an infinite gradient is ordinary: it is left out, on all ranks alike.
            self._amp = True
            self._worker.skip_non_finite()
        scale = getattr(self, "grad_scale", None)
        return 1.0 if scale is None else float(scale)

    def _check(self) -> None:
        """Refuses what the engine was not told when it was built."""
        self._check_own("step()")
        self._wrappers.check_step()
        self._check_fixed()
        if any(not param.requires_grad for param in self._flat.params) or any(p.requires_grad for p in self._frozen):
            raise RuntimeError("requires_grad of a parameter changed after the optimizer was built; build the optimizer anew")

    def _check_fixed(self) -> None:
        for group, then in zip(self.param_groups, self._fixed, strict=True):
            now = _fixed(group)
            if now != then:
                word = next(word for word in now if now[word] != then[word])
                raise ValueError(
                    f"{word} was {then[word]} when the optimizer was built, and is {now[word]} now; only lr may change "
                    "(OneCycleLR and CyclicLR: cycle_momentum=False)"
                )

    def sync(self) -> None:
        """Makes all replicas equal: before evaluation or export, and at the end of training. All ranks together."""
        self._check_own("sync()")
        with torch.no_grad():
            self._flat.take_params()
            self._worker.sync(self._flat.vector)
            self._flat.give_params()

    @contextmanager
    def consensus(self) -> Iterator[None]:
        """The parameters that all ranks would have after an exact sync, for evaluation, and then this rank's own again.

        Unlike :meth:`sync` it leaves the training as it was, to the bit. Between two syncs of 0/1 Adam it averages the parameters,
        32 bits each, which :meth:`traffic` does not count; otherwise they are equal already, and nothing is sent. All ranks together.

        Inside, :meth:`save` and :meth:`state_dict` are of the training, that is of the rank's own parameters; ``model.state_dict()``
        has those of the consensus. Nothing moves the parameters there: :meth:`step`, :meth:`sync` and :meth:`load_state_dict` raise
        RuntimeError.
        """
        self._inside += 1
        try:
            if self._inside > 1 or self._wire is None or self._worker.is_synced:
                yield
                return
            with torch.no_grad():
                self._flat.take_params()
                self._worker.gather(b"consensus")  # hears Ctrl-C, and names a rank that does not come
                mean = self._flat.values.clone()
                self._wire.mean(mean)
                self._own = self._flat.values.clone()
                self._flat.values.copy_(mean)
                self._flat.give_params()
            try:
                yield
            finally:
                with torch.no_grad():
                    self._flat.values.copy_(self._own)
                    self._own = None
                    self._flat.give_params()
        finally:
            self._inside -= 1

    def _keep_what_was_loaded(self) -> None:
        """Inside :meth:`consensus`, has its end leave the parameters as they are now: the program has loaded others."""
        if self._own is not None:
            with torch.no_grad():
                self._flat.take_params()
                self._own.copy_(self._flat.values)

    def _check_own(self, what: str) -> None:
        if self._inside:
            raise RuntimeError(f"{what} inside consensus(): the parameters are not this rank's own there; leave the block first")

    @contextmanager
    def _training(self) -> Iterator[None]:
        """The parameters that training goes on from, also inside :meth:`consensus`."""
        with torch.no_grad():
            if self._own is None:
                self._flat.take_params()
                yield
                return
            mean = self._flat.values.clone()
            self._flat.values.copy_(self._own)
            try:
                yield
            finally:
                self._flat.values.copy_(mean)

    def traffic(self) -> dict[str, Any]:
        """What this rank has sent and waited for so far: bytes, messages, rounds by kind, seconds by phase."""
        return self._worker.traffic()

    def plan(self, steps: int, schedule: dict[str, Any] | None = None) -> dict[str, Any]:
        """Rounds, bytes and memory of a run of `steps` steps, before anything is sent.

        Parameters
        ----------
        steps : int
            The length of the run.
        schedule : dict, optional
            A learning rate in the words of ``learning_rate``: a plan as if the optimizer had been built with it.
        """
        if schedule is not None and not isinstance(schedule, dict):
            raise TypeError(
                f"schedule is a {type(schedule).__name__}; accepted: a dict in the words of learning_rate, "
                'such as {"peak": 1e-3, "warmup": 100, "decay": "cosine", "steps": 1000}'
            )
        return self._worker.plan(steps, schedule)

    def save(self, dir: str | os.PathLike[str]) -> None:
        """Saves a checkpoint of parameters and optimizer to a folder that all ranks can read. All ranks together.

        ``resume=dir`` at construction goes on from it, also with another number of ranks, with the learning rates of now. A scheduler
        has a state of its own, which is not in it.
        """
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
        if _frameworks.is_asked_by(CHECKPOINT_HELPERS):
            raise RuntimeError(
                "get_optimizer_state_dict would lose moments and residues: it keeps only what torch.optim.AdamW has. Accepted: "
                "optimizer.state_dict() on every rank (torch.distributed.checkpoint.save takes it), or optimizer.save(dir)"
            )
        state = super().state_dict()
        state["state"] = {}
        state[_states.MINE] = {self._place(): self._state_of_mine()}
        if self._gathered is not None and self._gathered[0] == self._moment():
            if self._gathered[1]:
                state[_states.OTHERS] = self._gathered[1]
        elif self._worker.rank == 0 and self._worker.size > 1 and (remedy := _frameworks.saving()):
            log.warning("this checkpoint has the optimizer state of rank 0 alone, and training cannot resume from it: %s", remedy)
        return state

    def _state_of_mine(self) -> dict[str, Any]:
        types = {"f4": torch.float32, "f8": torch.float64}
        mine = self._worker._state(lambda count, kind: torch.empty(count, dtype=types[kind]))
        if self._own is not None:
            mine["consensus"] = self._flat.values.clone()
        with self._training():
            mine["params"] = self._flat.values.clone()
        return mine

    def consolidate_state_dict(self) -> None:
        """Has rank 0's next :meth:`state_dict` hold the states of all ranks, so that one file serves them all. All ranks together.

        As in ``torch.distributed.optim.ZeroRedundancyOptimizer``. Rank 0 keeps what the others' states have of their own, right after
        a sync little more than their residuals, until the next step.
        """
        self._gathered = None
        if self._wire is not None:
            away = self._own is None and not self._models_are_consensus and not self._worker.is_synced
            if away and self._worker.rank == 0 and (remedy := _frameworks.saving()):
                log.warning("the model in this checkpoint is rank 0's own, and not the consensus: %s", remedy)
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
        super().load_state_dict({key: state_dict[key] for key in ("state", "param_groups")})
        self._check_fixed()
        return {}

    def _tell_problems(self, own: Exception | None, first: Exception | None) -> list[dict[str, Any]]:
        """What every rank has against loading its own state, and against loading rank 0's."""
        texts = {"own": own and f"{type(own).__name__}: {own}", "first": first and f"{type(first).__name__}: {first}"}
        note = json.dumps({**texts, "from_rank0": bool(self.from_rank0)})
        return [json.loads(theirs) for theirs in self._worker.gather(note.encode())]

    def _adopt(self, first: dict[str, Any]) -> Tensor:
        """Goes on from rank 0's state; the parameters to go on from."""
        params = first["params"].clone()
        self._worker._adopt(first, params.numpy())
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
                f"all in one file, {_frameworks.loading() or _frameworks.ANYWHERE}. To go on from rank 0's alone, with residuals of zero, "
                "set optimizer.from_rank0 = True before loading; with another number of ranks there is also save(dir), then resume=dir"
            )
        self._check_params(mine)
        self._worker._check(mine)
        return mine

    def _first_of(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Rank 0's part of a state, if this rank could go on from it."""
        _check_is_ours(state_dict)
        first = _states.first(state_dict)
        if first is None:
            raise ValueError(f"from_rank0: expected the state of rank 0, found that of {_states.places(state_dict)}")
        self._check_params(first)
        self._worker._check_one(first)
        return first

    def _check_params(self, state: dict[str, Any]) -> None:
        params = state.get("params")
        if params is None:
            raise ValueError("the state has no params")
        if params.shape != self._flat.values.shape:
            raise ValueError(f"it is of {params.numel()} parameters, the model has {self._flat.values.numel()}")

    def _mark_state(self) -> None:
        """An optimizer without any state gets a step of ``torch.distributed.checkpoint``'s own, to make some."""
        cast(dict[Any, Any], self.state)["thinwire"] = {"in": 'state_dict()["thinwire"]'}

    def _place(self) -> str:
        return _states.place(self._worker.rank, self._worker.size)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Only while the optimizer is built: afterwards the ranks have agreed on the vector, and it is an error."""
        if getattr(self, "_built", False):
            raise RuntimeError(
                "parameters cannot be added after the optimizer was built; build a new one with all parameters "
                "(frozen ones stay out until then)"
            )
        super().add_param_group(param_group)

    def __getstate__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} is one end of a group and cannot be copied or pickled; use state_dict() or save()")

    def __deepcopy__(self, memo: Any) -> NoReturn:
        self.__getstate__()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        self.__getstate__()


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


def _check_is_ours(state_dict: dict[str, Any]) -> None:
    if not isinstance(state_dict.get(_states.MINE), dict):
        raise ValueError(
            "not a state of a thinwire optimizer; accepted: what state_dict() of one gave on this rank. The moments of another "
            "optimizer (torch.optim.AdamW) cannot be taken over: a new one gathers its own, best with a short warm-up of the rate"
        )


def _fixed(group: dict[str, Any]) -> dict[str, Any]:
    """What a param group keeps for good. A state that was written down may give a tuple back as a list."""
    return {"betas": tuple(group["betas"]), "eps": group["eps"], "weight_decay": group["weight_decay"]}


def _in_a_crowd() -> bool:
    """Whether there are other processes, in this group or beside it."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _has_others(process_group: Any) -> bool:
    """Whether there is somebody to train with."""
    if not (dist.is_available() and dist.is_initialized()):
        if process_group is not None:
            raise ValueError("process_group: torch.distributed is not initialised")
        if "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1":
            raise RuntimeError(
                f"this is one of {os.environ['WORLD_SIZE']} processes, by the environment (torchrun), and would train alone: "
                "call torch.distributed.init_process_group() before the optimizer is built"
            )
        return False
    if dist.get_rank(process_group) < 0:
        raise ValueError("process_group: this process is not in it")
    if dist.get_world_size(process_group) == 1:
        return False
    if not dist.is_gloo_available():
        raise RuntimeError("this PyTorch has no gloo backend, over which the optimizer's messages go")
    return True


def _connect(process_group: Any, deadline: float) -> Any:
    """The wire to the other ranks; None for one worker alone."""
    if not _has_others(process_group):
        return None
    from ._wire import Wire

    return Wire(process_group, deadline)


def _tell_others(process_group: Any, error: Exception) -> None:
    """They would wait for this rank until the deadline."""
    try:
        if _has_others(process_group):
            from ._store import tell

            tell(process_group, f"{type(error).__name__}: {error}", TELLING)
    except Exception:  # this rank's own error is the one to see
        log.debug("the other ranks could not be told", exc_info=True)


_ARGUMENTS = """
    Parameters
    ----------
    params : iterable
        Parameters, or dicts with param groups, each with its own ``lr`` and ``weight_decay``. Float32 in the host's memory becomes
        views of one flat tensor; bfloat16, float16 and other devices go through a float32 master there.
    lr : float
        The learning rate; any scheduler may change it, group by group, alike on all ranks.
    betas, eps, weight_decay
        As in ``torch.optim.AdamW``. They stay as they are.
    process_group : ProcessGroup, optional
        The ranks that train together; the default group without it. If ``torch.distributed`` is not initialised, one worker.
    init : {{"check", "broadcast"}}
        What to do about initial parameters that differ between ranks: raise ValueError, or take rank 0's.
    deadline : float
        Seconds that a rank waits for another before it raises TimeoutError with the silent one's name.
    resume : path, optional
        A folder of :meth:`save` to go on from, also with another number of ranks. Its learning rates replace ``lr``, as those of a
        ``state_dict`` do.
    **config
        The engine's words, such as ``codec``, ``block``, ``clip``, ``non_finite``, ``threads``, ``learning_rate``{words}.

    Notes
    -----
    A parameter whose gradient is None counts as one whose gradient is 0: it goes on decaying, which in PyTorch's own it does not.
    ``clip_grad_norm_`` sees this rank's gradient alone; ``clip`` is the engine's own, and sees the mean in exact rounds.
"""


def _described(summary: str, words: str = "") -> str:
    return summary + "\n" + _ARGUMENTS.format(words=words)


class AdamW(_Compressed):
    __doc__ = _described("AdamW on the exact mean of the gradients: the baseline, equal to ``torch.optim.AdamW`` under DDP to rounding.")
    _name = "adam"


class OneBitAdam(_Compressed):
    __doc__ = _described("1-bit Adam (arXiv 2102.02888): exact rounds during the warm-up, then one bit a parameter a step.", ", ``warmup``")
    _name = "one-bit-adam"


class ZeroOneAdam(_Compressed):
    __doc__ = _described(
        "0/1 Adam (arXiv 2202.06009): stale variance, local steps, and one bit a parameter when the ranks do talk.\n\n"
        "    Tell it the schedule of your learning rate (``learning_rate``): by that it knows which rounds to leave out. Without it,\n"
        "    it talks at every step.",
        ", ``kappa``, ``freeze``, ``sync``, ``sync_every``, ``sync_longest``",
    )
    _name = "zero-one-adam"


class EfficientAdam(_Compressed):
    __doc__ = _described(
        "Efficient-Adam (arXiv 2205.14473): every rank's own Adam update, averaged in a few bits both ways.", ", ``theta``"
    )
    _name = "efficient-adam"
