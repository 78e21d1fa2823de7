"""The order of examples, chosen for all ranks together: CD-GraB (arXiv 2302.00845).

Which order an epoch takes its batches in is usually random. A better one can be found from the gradients of the epoch before: batches
whose gradients pull in opposite directions should come close together, so that the sums along the way stay small. CD-GraB balances the
batches of all ranks at once. For each pair of neighbours in a rank's order, and for each rank in turn::

    z = g(first) - g(second)
    <s, z> <= 0:   first goes to the next free place from the front, second to the next from the back;   s <- s + z
    else:          the other way round;                                                                 s <- s - z

The places make the next epoch's order, and s begins at 0 in every epoch.

Only inner products with s are needed. So instead of a gradient of millions of values each rank sends a *sketch* of z, some hundred sums
of its values with random signs: two kilobytes for two batches, where the paper's code sends all of both gradients.

::

    order = thinwire.data.CoordinatedOrder(len(batches))
    for epoch in range(epochs):
        for index in order:                        # this rank's batches, by their numbers
            optimizer.zero_grad()
            loss(model, batches[index]).backward()
            order.note(model.parameters())         # after backward, before anything changes the gradients
            optimizer.step()

It pays where the same batches come again, for some epochs: fine-tuning, small data. It is no compressor, and costs a pass over the
gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import Sampler

__all__ = ["CoordinatedOrder"]


class CoordinatedOrder(Sampler[int]):
    """An order of this rank's batches that gets better from epoch to epoch. All ranks together.

    Parameters
    ----------
    batches : int
        How many this rank has; the same on all ranks. It goes through their numbers, 0 to batches - 1, once an epoch.
    sketch : int, optional
        Values of a sketch. None sends the difference of the gradients itself, for tests and small models.
    seed : int
        Of the first epoch's order, another one on every rank, and of the signs, the same on all.
    process_group : ProcessGroup, optional
        The ranks that train together: those of the optimizer. One rank alone without ``torch.distributed``.
    """

    def __init__(self, batches: int, *, sketch: int | None = 256, seed: int = 0, process_group: Any = None) -> None:
        if batches < 1:
            raise ValueError(f"batches = {batches}: expected at least 1")
        if sketch is not None and sketch < 1:
            raise ValueError(f"sketch = {sketch}: expected at least 1, or None for the gradients themselves")
        self._batches, self._sketch, self._seed, self._group = batches, sketch, seed, process_group
        alone = not (dist.is_available() and dist.is_initialized())
        self._rank, self._ranks = (0, 1) if alone else (dist.get_rank(process_group), dist.get_world_size(process_group))
        generator = torch.Generator().manual_seed(1_000_003 * seed + self._rank)
        self._order = torch.randperm(batches, generator=generator).tolist()
        self._signs: dict[int, Tensor] = {}
        self._first: Tensor | None = None
        self._epoch = 0
        self._begin()

    def _begin(self) -> None:
        """The next epoch's order, all of it still open."""
        self._next = [-1] * self._batches
        self._noted, self._front, self._back = 0, 0, self._batches - 1
        self._sum: Tensor | None = None

    def __len__(self) -> int:
        """Batches of an epoch."""
        return self._batches

    def __iter__(self) -> Iterator[int]:
        """The rest of this epoch's order: all of it, unless :meth:`load_state_dict` came in the middle."""
        return iter(self._order[self._noted :])

    @property
    def epoch(self) -> int:
        """Epochs that are over."""
        return self._epoch

    @torch.no_grad()
    def note(self, gradients: Iterable[Tensor]) -> None:
        """Looks at the gradient of the batch that is next in the order: parameters with a ``grad``, or gradients. At every second batch
        the ranks hear each other's sketches, so all must call it."""
        mine = self._sketched([tensor.grad if isinstance(tensor, torch.nn.Parameter) else tensor for tensor in gradients])
        index = self._order[self._noted]
        self._noted += 1
        if self._first is None and self._noted < self._batches:
            self._first = mine
            return
        if self._first is None:  # the last of an odd number has nobody to be weighed against
            self._next[self._front] = index
        else:
            self._place(self._order[self._noted - 2], index, self._first - mine)
            self._first = None
        if self._noted == self._batches:
            self._order, self._epoch = self._next, self._epoch + 1
            self._begin()

    def _place(self, first: int, second: int, difference: Tensor) -> None:
        """Gives both a place in the next epoch: every rank's pair in turn, by the same arithmetic on all ranks."""
        total = torch.zeros_like(difference) if self._sum is None else self._sum
        for rank, z in enumerate(self._gathered(difference)):
            fits = bool(torch.dot(total, z) <= 0)
            total = total + z if fits else total - z
            if rank == self._rank:
                self._next[self._front], self._next[self._back] = (first, second) if fits else (second, first)
        self._sum = total
        self._front, self._back = self._front + 1, self._back - 1

    def _gathered(self, mine: Tensor) -> list[Tensor]:
        if self._ranks == 1:
            return [mine]
        device = "cuda" if dist.get_backend(self._group) == "nccl" else "cpu"
        mine = mine.to(device)
        everyones = [torch.empty_like(mine) for _ in range(self._ranks)]
        dist.all_gather(everyones, mine, group=self._group)
        return [z.cpu() for z in everyones]

    def _sketched(self, gradients: list[Tensor | None]) -> Tensor:
        """Sums of the values with random signs: value i of a tensor counts in sum i modulo the sketch's length. In f64 on the host, so that
        all ranks have the same bits to compare."""
        if self._sketch is None:
            flat = [gradient.detach().flatten().double().cpu() for gradient in gradients if gradient is not None]
            return torch.cat(flat) if flat else torch.zeros(0, dtype=torch.float64)
        total = torch.zeros(self._sketch, dtype=torch.float64)
        for number, gradient in enumerate(gradients):
            if gradient is None or not gradient.numel():
                continue
            signs = self._signs_of(number, gradient)
            signed = gradient.detach().flatten() * signs
            whole = signed.numel() // self._sketch * self._sketch
            if whole:
                total += signed[:whole].view(-1, self._sketch).sum(0, dtype=torch.float64).cpu()
            total[: signed.numel() - whole] += signed[whole:].double().cpu()
        return total

    def _signs_of(self, number: int, gradient: Tensor) -> Tensor:
        """±1 for each value, a byte each, made once."""
        if number not in self._signs:
            generator = torch.Generator().manual_seed(1_000_003 * self._seed + 7919 * number + 1)
            bits = torch.randint(0, 2, (gradient.numel(),), generator=generator, dtype=torch.int8)
            self._signs[number] = (2 * bits - 1).to(gradient.device)
        return self._signs[number]

    def state_dict(self) -> dict[str, Any]:
        """Everything that makes the rest of the epoch and the next ones what they are; another one on every rank."""
        return {
            "batches": self._batches,
            "ranks": self._ranks,
            "rank": self._rank,
            "seed": self._seed,
            "sketch": self._sketch,
            "epoch": self._epoch,
            "noted": self._noted,
            "order": list(self._order),
            "next": list(self._next),
            "sum": self._sum,
            "first": self._first,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from where :meth:`state_dict` was taken, on the same rank of as many."""
        for name, mine in (
            ("batches", self._batches),
            ("ranks", self._ranks),
            ("rank", self._rank),
            ("seed", self._seed),
            ("sketch", self._sketch),
        ):
            if state[name] != mine:
                raise ValueError(
                    f"{name}: expected {mine}, found {state[name]} in the state; with another number of ranks or batches start a new order"
                )
        self._epoch, self._noted = state["epoch"], state["noted"]
        self._order, self._next = list(state["order"]), list(state["next"])
        self._sum, self._first = state["sum"], state["first"]
        pairs = self._noted // 2
        self._front, self._back = pairs, self._batches - 1 - pairs
