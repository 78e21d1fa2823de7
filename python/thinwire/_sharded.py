"""Models that FSDP2 has cut into shards: each rank holds a part of every parameter, a DTensor.

A replica is the ranks of one mesh dimension, *inside*, over which ``fully_shard`` cuts the model and averages gradients. The optimizer
averages *across* replicas: each rank trains its own shards together with the ranks that hold the same shards of the other replicas.
What all shards of a replica must agree on goes over a wire of its own inside the replica (``crates/thinwire/src/transport/shards.rs``).
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch.distributed as dist
from torch import Tensor

from ._store import Circle

REMEDY = (
    "shard inside a replica and let the optimizer average across: mesh = init_device_mesh(device, (replicas, shards), "
    'mesh_dim_names=("across", "inside")), fully_shard(model, mesh=mesh["inside"]), process_group=mesh["across"]'
)


def is_dtensor(tensor: Any) -> bool:
    return hasattr(tensor, "device_mesh") and hasattr(tensor, "to_local")


def local(tensor: Any) -> Any:
    """This rank's part of a tensor; all of it, if it is not cut."""
    return tensor.to_local() if is_dtensor(tensor) else tensor


def as_group(process_group: Any) -> Any:
    """A process group, also out of a mesh of one dimension."""
    if not hasattr(process_group, "mesh_dim_names"):
        return process_group
    if process_group.ndim != 1:
        raise ValueError(
            f"process_group: expected a group or a mesh of one dimension, found a mesh of {process_group.ndim} "
            f'{process_group.mesh_dim_names or ""}; give one of them, such as mesh["across"]'
        )
    return process_group.get_group()


def listed(params: Any) -> Any:
    """What an optimizer is given, in a form that can be looked at more than once."""
    if isinstance(params, (Tensor, dict)) or not isinstance(params, Iterable):
        return params
    entries = list(params)
    return [{**e, "params": listed(e["params"])} if isinstance(e, dict) and "params" in e else e for e in entries]


def _tensors(params: Any) -> Iterable[Any]:
    for entry in params if isinstance(params, list) else [params]:
        if isinstance(entry, dict):
            yield from _tensors(entry.get("params"))
        elif isinstance(entry, tuple):
            yield from entry[1:]
        else:
            yield entry


class Sharding(NamedTuple):
    """How one replica is cut, and where this rank is."""

    mesh: Any
    shard: int  # which one this rank has
    size: int  # of the replica, in ranks
    everyone: list[int]  # the ranks of all replicas

    @property
    def group(self) -> Any:
        return self.mesh.get_group()

    @property
    def name(self) -> str:
        return f"shard-{self.shard}-of-{self.size}"

    def circle(self) -> Circle:
        """All ranks of all replicas, who meet before anyone connects."""
        digest = hashlib.sha256(repr(self.everyone).encode()).hexdigest()[:16]
        return Circle(f"shards/{digest}/{len(self.everyone)}", self.everyone.index(dist.get_rank()), len(self.everyone), self.everyone)

    def folder(self, dir: str | os.PathLike[str]) -> str:
        """Where this rank's shards are in a checkpoint; each is one of the engine's own."""
        return os.path.join(dir, self.name)

    def check_folder(self, dir: str | os.PathLike[str]) -> None:
        if not os.path.isdir(self.folder(dir)):
            there = sorted(name for name in os.listdir(dir) if re.fullmatch(r"shard-\d+-of-\d+", name))
            raise ValueError(
                f"resume = {os.fspath(dir)!r}: expected {self.name}, found {', '.join(there) or 'a checkpoint without shards'}; a folder "
                "of save() is resumed with as many shards as saved it. torch.distributed.checkpoint loads another sharding"
            )


def found(params: Any, process_group: Any) -> Sharding | None:
    """The sharding of `params`, which are `listed`; None if they are whole."""
    param = next((tensor for tensor in _tensors(params) if is_dtensor(tensor)), None)
    if param is None:
        return None
    mesh = param.device_mesh
    if mesh.ndim != 1:
        raise ValueError(
            f"params: expected parameters that are sharded over a mesh of one dimension, found a mesh of {mesh.ndim} "
            f"{mesh.mesh_dim_names or ''} (FSDP with replicas, HSDP, averages across replicas itself; tensor parallelism is not "
            f"supported): {REMEDY}"
        )
    inside, across = mesh.mesh.flatten().tolist(), dist.get_process_group_ranks(process_group)
    if mesh.get_coordinate() is None:
        raise ValueError(f"params: this rank has no shard of them: their mesh is of ranks {inside}")
    both = sorted(set(inside) & set(across))
    if both != [dist.get_rank()]:
        raise ValueError(
            f"process_group: its ranks {across} and those that hold a replica's shards, {inside}, have {both} in common, where only this "
            f"rank may be in both: FSDP averages gradients inside a replica, and this optimizer across; {REMEDY}"
        )
    return Sharding(mesh, mesh.get_local_rank(), len(inside), _everyone(mesh, inside, across))


def _everyone(mesh: Any, inside: list[int], across: list[int]) -> list[int]:
    """The ranks of all replicas: of the whole program, or of the two dimensions of a larger mesh."""
    if len(inside) * len(across) == dist.get_world_size():
        return list(range(dist.get_world_size()))
    root = mesh._get_root_mesh()
    ranks, at = root.mesh, root.get_coordinate()
    lines = {tuple(ranks[tuple(at[:dim]) + (slice(None),) + tuple(at[dim + 1 :])].tolist()): dim for dim in range(ranks.ndim)} if at else {}
    dims = (lines.get(tuple(inside)), lines.get(tuple(across)))
    if None in dims:
        raise ValueError(
            f"process_group: ranks {across} and the shards' {inside} are no two dimensions of one mesh, and not all "
            f"{dist.get_world_size()} ranks of the program: {REMEDY}"
        )
    plane = ranks[tuple(slice(None) if dim in dims else place for dim, place in enumerate(at))]
    return sorted(plane.flatten().tolist())


def check(param: Tensor, label: str, sharding: Sharding | None) -> None:
    """Refuses a parameter that is not cut as the others of the model are."""
    if sharding is None:
        return
    if not is_dtensor(param):
        raise ValueError(
            f"{label} is whole, and others of the model are shards; accepted: all trained parameters as shards. Call fully_shard on the "
            "whole model too, after its layers, and without ignored_params"
        )
    mesh, placements = param.device_mesh, param.placements  # type: ignore[attr-defined]
    if mesh != sharding.mesh:
        raise ValueError(
            f"{label} is sharded over {mesh}, and others of the model over {sharding.mesh}; accepted: one mesh for all of them"
        )
    if len(placements) != 1 or not placements[0].is_shard(0):
        raise ValueError(f"{label} is placed as {placements}; accepted: shards of its first dimension, as fully_shard makes them")


def starts(params: Sequence[Tensor], sharding: Sharding | None) -> list[int]:
    """Where this rank's part of each parameter begins, in the parameter as a flat vector."""
    if sharding is None:
        return [0] * len(params)
    return [_rows(param.shape[0], sharding)[0] * (param.numel() // max(param.shape[0], 1)) for param in params]


def _rows(rows: int, sharding: Sharding) -> tuple[int, int]:
    """The rows of a tensor that this rank holds: as torch.chunk cuts, the last shards may have fewer, or none."""
    each = -(-rows // sharding.size)
    return min(rows, sharding.shard * each), min(rows, (sharding.shard + 1) * each)
