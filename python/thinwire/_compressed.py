"""What the optimizers for PyTorch have in common: ``torch.optim.Optimizer`` on the outside, the engine on the inside.

What PyTorch and the engine disagree on is an error, never a guess.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn

from . import _place, _rates, _schedule, _sharded, _thinwire, _words
from . import _torch_private as private
from ._buffers import Buffers, Rule
from ._checkpoint import Checkpointed, fixed
from ._ddp import Wrappers
from ._flat import Flat
from ._guess import guessing
from ._listing import Listing
from ._modules import Modules, given_names
from ._notices import Notices
from ._schedule import Course
from ._store import Meeting
from ._worker import Worker

if TYPE_CHECKING:
    from ._options import AnySchedule
    from ._place import Choice
    from .device.flat import DeviceFlat

log = logging.getLogger("thinwire")

TELLING = 10.0  # seconds for the others to come and hear why this rank does not

OFF_SCHEDULE = 0.1  # of its peak

A_YEAR = 366 * 24 * 3600.0  # seconds

LIGHTNING = ("lightning", "lightning_fabric", "pytorch_lightning")


class _Compressed(Checkpointed):
    """What all have in common: all but their names, and where a paper has others, the usual betas."""

    _name: str
    _betas: tuple[float, float] = (0.9, 0.999)
    _wrappers: Wrappers
    _listing: Listing
    _course: Course | None  # the rates of the run, where the schedule is more than a table

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """GradScaler asks, and then calls step() on every rank, also where a gradient is infinite, and leaves the rest to us.

        Lightning asks too, and to it a yes means that gradients cannot be clipped: but here they can, once GradScaler has unscaled them.
        """
        asked_by = sys._getframe(1).f_globals.get("__name__", "")
        return asked_by.partition(".")[0] not in LIGHTNING

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] | None = None,
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        process_group: Any = None,
        init: Literal["check", "broadcast"] = "check",
        deadline: float = 300.0,
        resume: str | os.PathLike[str] | None = None,
        schedule: AnySchedule = None,
        steps: int | None = None,
        buffers: nn.Module | Iterable[Tensor] | None = None,
        buffer_sync: Rule = "mean",
        device: Choice = "auto",
        **config: Any,
    ) -> None:
        self._sharding = None
        self._has_betas = betas is not None
        betas = self._betas if betas is None else betas
        try:
            process_group = _sharded.as_group(process_group)
            params = _sharded.listed(params)
            self._process_group = process_group
            self._sharding = _sharded.found(params, process_group)
            _words.check_folder(resume)
            if self._sharding is not None and resume is not None:
                self._sharding.check_folder(resume)
                resume = self._sharding.folder(resume)
            self._buffers = None if buffers is None else Buffers(buffers, buffer_sync)
            config, self._course = _schedule.take(config, schedule, steps)
            words = self._prepare(
                params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}, init, deadline, device, config
            )
        except Exception as error:
            _tell_others(process_group, self._sharding, error)
            raise
        self._deadline, self._length = deadline, steps
        self._connect()
        if not _in_a_crowd():  # there the engine looks itself, at every step
            self._flat.look_at_gradients()
        if resume is not None and "learning_rate" not in words and (table := _schedule.saved_in(resume)) is not None:
            words["learning_rate"] = table
            self._off_schedule = True  # it may be the nearest table to something that is known no more
        self._work(self._meet(words, init, deadline, resume), words)
        if self._wires():
            self._start_buffers(init == "broadcast" and resume is None)
        self._next_told = 1  # how many steps left out are the next to be told
        self._built = True
        self._mark_state()
        self._notices.start(self._worker, words)
        log.info("%s of %d parameters, worker %d of %d", self._name, self._worker.parameters, self._worker.rank, self._worker.size)

    def _work(self, worker: Worker, words: dict[str, Any]) -> None:
        """Goes on with `worker`, which was built from `words`."""
        self._worker, self._given, self._gathered = worker, words, None
        self._peak = worker.config.get("learning_rate", {}).get("peak", 0.0)
        self._skips = worker.config["non_finite"] == "skip"

    def _start_buffers(self, broadcast: bool) -> None:
        if self._buffers is not None:
            self._buffers.check(self._worker.gather(self._buffers.note()))
            if broadcast:
                for wire in self._wires():
                    self._buffers.agree(wire, "rank0")
        elif (where := self._modules.running_statistics()) is not None:
            log.warning(
                "%s has running statistics, which stay each rank's own: give the optimizer buffers=model, and sync() and consensus() make "
                "them equal on all ranks",
                where,
            )

    def _prepare(
        self, params: Any, defaults: dict[str, Any], init: str, deadline: float, device: Choice, config: dict[str, Any]
    ) -> dict[str, Any]:
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
        self._amp = self._off_schedule = self._told_of_no_gradient = False
        self._trained = [[param for param in group["params"] if param.requires_grad] for group in self.param_groups]
        if not any(self._trained):
            raise ValueError(
                "params: expected some that require a gradient, found none (requires_grad is set before the optimizer is built)"
            )
        self._frozen = [param for group in self.param_groups for param in group["params"] if not param.requires_grad]
        flat = [param for group in self._trained for param in group]
        words = self._words(config)
        with guessing(_words.OURS, _words.ELSEWHERE):
            resolved = _thinwire.resolve(words)  # a word that does not fit is an error before anything is sent
        for group in self.param_groups:
            group["betas"] = tuple(resolved["betas"])  # Birder's follow from its beta
        place = _place.choose(device, flat, _thinwire.needs(words), resolved)
        self._modules = Modules(flat)
        given = given_names(self.param_groups, flat)
        self._listing = Listing.of(flat, given, self._modules.names)
        self._wrappers = Wrappers(flat, _ranks(self._process_group))
        names = given or self._modules.names
        self._flat = self._laid(flat, names, place)
        self._notices = Notices(self._flat.lengths, self._listing.shapes, names)
        self._fixed = [fixed(group) for group in self.param_groups]
        return words

    def _laid(self, params: list[Any], names: Sequence[str | None], place: _place.Place | None) -> Flat | DeviceFlat:
        """The parameters as one vector: in the host's memory, or where they are."""
        if place is None:
            return Flat(params, names, self._sharding)
        from .device.flat import DeviceFlat

        return DeviceFlat(params, names, self._sharding, place.device, place.name)

    def _words(self, config: dict[str, Any]) -> dict[str, Any]:
        """The engine's configuration."""
        first = self.param_groups[0]
        for group in self.param_groups:
            for word in ("betas", "eps"):
                if group[word] != first[word]:
                    raise ValueError(f"{word} = {group[word]}: must be the same in all param groups, and is {first[word]} in the first")
        words = {**config, "name": self._name, "betas": list(first["betas"]), "eps": first["eps"]}
        if not self._has_betas and tuple(first["betas"]) == self._betas:
            del words["betas"]  # the optimizer's own are the same, unless another option says otherwise
        if len(self.param_groups) == 1:
            return {**words, "weight_decay": first["weight_decay"]}
        lengths = [sum(_sharded.local(param).numel() for param in trained) for trained in self._trained]
        decays = [group["weight_decay"] for group in self.param_groups]
        groups = [{"length": length, "weight_decay": decay} for length, decay in zip(lengths, decays, strict=True)]
        return {**words, "groups": groups}

    def _meet(self, words: dict[str, Any], init: str, deadline: float, resume: Any) -> Worker:
        if self._inside_wire is not None:
            group = _thinwire.sharded_group(self._wire, self._inside_wire, deadline)
        else:
            group = _thinwire.solo() if self._wire is None else _thinwire.wire_group(self._wire, deadline)
        if init == "broadcast" and self._wire is not None and resume is None:
            values = self._flat.values.cpu()  # the same tensor, where it is on the host
            self._wire.broadcast(values)
            self._flat.values.copy_(values)
        machine, count = self._flat.machine, self._flat.values.numel()
        if resume is not None:
            worker = Worker(**words, parameters=count, group=group, device=machine)
            worker.resume(os.fspath(resume), self._flat.vector)
            _rates.take(resume, worker.steps, self.param_groups)
        else:
            try:
                if machine is None:
                    worker = Worker(**words, parameters=self._flat.vector, group=group)
                else:
                    worker = Worker(**words, parameters=count, group=group, device=machine)
                    worker._meet_on_device()
            except (ValueError, RuntimeError) as error:
                if "the parameters to start from" in str(error):
                    hint = 'seed all ranks alike, load the same checkpoint, or take rank 0\'s by init="broadcast"'
                    raise ValueError(f"{error}; {hint}") from None
                raise
        self._give()
        return worker

    def _connect(self) -> None:
        """Makes the wires to the other ranks, after all of them have met: to the counterparts across replicas, None for one worker alone,
        and to the shards of this replica, None where it is in one piece."""
        self._wire = self._inside_wire = None
        has_others, sharding = _has_others(self._process_group), self._sharding
        listing = self._listing
        if sharding is not None and len(sharding.everyone) > 1:
            Meeting(sharding.circle(), self._deadline, listing=listing.to_bytes()).hold()
            shapes = [list(_sharded.local(param).shape) for param in self._flat.params]
            listing = listing.of_shards(shapes, f"shard {sharding.shard} of {sharding.size}")
        if has_others:
            self._wire = _wire(self._process_group, self._deadline, listing)
        if sharding is not None and sharding.size > 1:
            self._inside_wire = _wire(sharding.group, self._deadline, self._listing)

    @torch.no_grad()
    def _give(self) -> None:
        self._flat.give_params()

    def set_weight(self, weight: int) -> None:
        """From now on a step of this rank counts for so much in every mean, such as its number of examples or tokens; 1 at first.

        It needs ``weighted=True`` on all ranks: then batches of different sizes are averaged as one. A round after several steps counts
        for all of them, and a step that counts for 0 takes no part.
        """
        self._worker.set_weight(weight)

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

    @private.outside_compile
    def _take_step(self) -> None:
        self._check()
        self._gathered = None
        with torch.no_grad():
            self._flat.take_params()
            grads = self._flat.take_grads(self._scale())
            self._check_missing([number for number, param in enumerate(self._flat.params) if param.grad is None])
            rates = [float(group["lr"]) for group in self.param_groups]
            own = None if all(rate == rates[0] for rate in rates) else rates
            self._compare_with_schedule(rates[0])
            self._flat.step(self._worker, grads, rates[0], own)
            self._flat.give_params()
        if self._skips and not self._amp and not grads.finite:  # a scaler's infinities are ordinary
            self._tell_left_out()
        self._notices.after_step(self._worker)

    def _check_missing(self, missing: list[int]) -> None:
        """A parameter without a gradient counts as one whose gradient is zero: wrong if nothing will ever bring it one."""
        self._modules.check_present(missing)
        if missing and len(missing) == len(self._flat.params) and not self._told_of_no_gradient:
            self._told_of_no_gradient = True
            log.warning(
                "step %d: no parameter of worker %d has a gradient, which counts as a gradient of zeros in the mean of all workers. Call "
                "backward() before step(), on the model that the optimizer was built for",
                self._worker.steps,
                self._worker.rank,
            )

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
        """0/1 Adam skips rounds by the rate it is given; the schedule is what it was told to expect."""
        if self._off_schedule:
            return
        expected = self._worker._expected_rates if self._course is None else self._course.around(self._worker.steps)
        if expected is None:
            return
        # Whether a schedule begins one step earlier or later is a matter of taste.
        around, room = sorted(expected), OFF_SCHEDULE * self._peak
        if not around[0] - room <= lr <= around[-1] + room:
            self._off_schedule = True
            log.warning(
                "step %d: lr is %g, and the schedule says %g; rounds go by lr, so plan() will not be what is sent. "
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

    def traffic(self) -> dict[str, Any]:
        """What this rank has sent and waited for so far: bytes, messages, rounds by kind, seconds by phase.

        ``jumps`` counts the steps that moved a parameter by more than 100 learning rates, which a sound run does not have;
        ``first_jump`` is None, or the ``step`` and the ``parameter`` of the first, as a place in the flat vector. The log has its name.
        ``outliers`` counts this rank's gradients that were far longer than those before them, and were clipped or left out;
        ``first_outlier`` is None, or the ``step``, the ``norm`` and the ``limit`` of the first.
        """
        return self._worker.traffic()

    def follow(self, scheduler: Any, steps: int | None = None) -> None:
        """Tells the engine what `scheduler` will do, as ``schedule=`` does, before the first step. All ranks together.

        A scheduler needs the optimizer before there is one to read. So this steps a copy of it to the end of the run and builds the
        engine's worker again; neither the scheduler nor a learning rate is changed. After a resume or ``load_state_dict`` the
        schedule is the checkpoint's, and this only says which rates to expect.

        Parameters
        ----------
        scheduler : torch.optim.lr_scheduler.LRScheduler
            A scheduler on this optimizer whose rates depend on the step alone, stepped once for each :meth:`step`.
        steps : int, optional
            The length of the run; by default the ``steps`` of the optimizer, or the scheduler's own ``total_steps``.
        """
        from ._scheduler import read

        self._check_own("follow()")
        begun = self._worker.steps > 0
        try:
            course = read(scheduler, self, steps if steps is not None else self._length)
            self._check_fixed()
            if begun and "learning_rate" not in self._worker.config:
                raise RuntimeError("follow() after the first step: the rounds of the run go without a schedule; call it before")
            words = {**self._given, "learning_rate": course.table}
            _thinwire.resolve(words)
        except Exception as error:
            if not begun:
                _tell_others(self._process_group, self._sharding, error)
            raise
        if not begun:
            with torch.no_grad():
                self._flat.take_params()  # what the program has changed since the optimizer was built
            for wire in self._wires():
                wire.close()  # the engine's worker has posted receives on it, and nobody can take those back
            self._connect()
            self._work(self._meet(words, "check", self._deadline, None), words)
            self._notices.start(self._worker, words)
        self._course, self._off_schedule = course, False

    def plan(self, steps: int, schedule: Any = None) -> dict[str, Any]:
        """Rounds, bytes and memory of a run of `steps` steps, before anything is sent.

        Parameters
        ----------
        steps : int
            The length of the run.
        schedule : dict, function or scheduler, optional
            A learning rate as in ``schedule=`` or :meth:`follow`: a plan as if the optimizer had been built with it. Of a function or
            scheduler the plan knows the nearest shape that the engine has a word for.
        """
        if schedule is None or isinstance(schedule, dict):
            course = self._course if schedule is None else None
        elif getattr(schedule, "optimizer", None) is self:
            from ._scheduler import read

            course = read(schedule, self, steps)
            schedule = course.table
        else:
            course = _schedule.sampled(schedule, steps)
            schedule = course.table
        if course is not None and course.off > OFF_SCHEDULE:
            log.warning(
                "plan: the engine has no word for this schedule's shape, and plans with the nearest (%s), whose rate is off by up to "
                "%.0f %% of the peak; the run's own rounds go by lr",
                course.table["decay"],
                100 * course.off,
            )
        plan: dict[str, Any] = self._worker.plan(steps, schedule)
        return plan

    def __repr__(self) -> str:
        """As PyTorch's, with the worker's place, what it sends, and the rounds so far."""
        text = super().__repr__()
        if not getattr(self, "_built", False):
            return text
        worker, config = self._worker, self._worker.config
        codecs = [config[word] for word in ("codec_up", "codec_down") if word in config] or [config["exact_codec"]]
        rounds = ", ".join(f"{count} {kind}" for kind, count in self.traffic()["rounds"].items())
        place = f"worker {worker.rank} of {worker.size}, codec {' and '.join(dict.fromkeys(codecs))}, {worker.steps} steps"
        if "outer" in config:
            gap = f"every {config['sync_every']} steps" if "sync_every" in config else f"at most {config['sync_longest']} steps apart"
            place += f", outer step {config['outer']} {gap}"
        return text.replace(" (\n", f" ({place}; rounds: {rounds}\n", 1)

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


def _wire(process_group: Any, deadline: float, listing: Listing) -> Any:
    from ._wire import Wire

    return Wire(process_group, deadline, listing.to_bytes())


def _ranks(process_group: Any) -> list[int]:
    """The ranks of a group; nothing where there is none."""
    return dist.get_process_group_ranks(process_group) if dist.is_available() and dist.is_initialized() else []


def _tell_others(process_group: Any, sharding: _sharded.Sharding | None, error: Exception) -> None:
    """They would wait for this rank until the deadline."""
    try:
        if sharding is not None or _has_others(process_group):
            from ._store import Circle, tell

            circle = Circle.of(process_group) if sharding is None else sharding.circle()
            tell(circle, f"{type(error).__name__}: {error}", TELLING)
    except Exception:  # this rank's own error is the one to see
        log.debug("the other ranks could not be told", exc_info=True)
