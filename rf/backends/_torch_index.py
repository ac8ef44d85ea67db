"""Kernels of the torch backend that order or scatter values."""

from __future__ import annotations

import torch

from rf.backend import Raw


class IndexKernels:
    """Mixed into `rf.backends.torch.TorchBackend`."""

    def scatter(
        self, x: Raw, indices: Raw, num_batch: int, num_index: int, size: int, mode: str, initial: float
    ) -> Raw:
        batch, rest = x.shape[:num_batch], x.shape[num_batch + num_index :]
        rows, per_row = batch.numel(), x.shape[num_batch : num_batch + num_index].numel()
        index = indices.reshape(rows, per_row).long()
        index = (index + torch.arange(0, rows * size, size, device=x.device)[:, None] if size else index).reshape(-1)
        flat = x.reshape(rows * per_row, rest.numel())
        out = torch.full((rows * size, rest.numel()), initial, dtype=x.dtype, device=x.device)
        if mode == "sum":
            out = out.index_add(0, index, flat)
        else:
            out = out.scatter_reduce(0, index[:, None].expand_as(flat), flat, {"max": "amax", "min": "amin"}[mode])
        return out.reshape(*batch, size, *rest)

    def sort(self, x: Raw, axis: int, descending: bool) -> tuple[Raw, Raw]:
        values, indices = torch.sort(x, dim=axis, descending=descending, stable=True)
        return values, indices.int()

    def top_k(self, x: Raw, axis: int, k: int, in_order: bool) -> tuple[Raw, Raw]:
        # torch leaves open which of equal values topk takes, and in which order; rf promises the first ones. A stable
        # sort is right but slow. So where looking at values is cheap, topk is taken, unless values on both sides of the
        # cut are equal (or NaN).
        if x.device.type == "cpu" and 0 < k < x.shape[axis] and not torch.compiler.is_compiling():
            with torch.no_grad():
                best, indices = torch.topk(x, k, axis, sorted=False)
                cut = best.amin(axis, keepdim=True)
                unique = bool(((x >= cut).sum(axis, keepdim=True) == k).all())
                if unique:
                    indices = torch.sort(indices, dim=axis)[0]
            if unique:
                values = torch.gather(x, axis, indices)
                if in_order:
                    values, order = torch.sort(values, dim=axis, descending=True, stable=True)
                    indices = torch.gather(indices, axis, order)
                return values, indices.int()
        values, indices = torch.sort(x, dim=axis, descending=True, stable=True)
        return values.narrow(axis, 0, k), indices.narrow(axis, 0, k).int()

    def search_sorted(self, sorted_: Raw, values: Raw, num_batch: int, right: bool) -> Raw:
        batch = torch.broadcast_shapes(sorted_.shape[:num_batch], values.shape[:num_batch])
        rest = values.shape[num_batch:]
        table = sorted_.expand(*batch, sorted_.shape[-1]).contiguous()
        flat = values.expand(*batch, *rest).reshape(*batch, rest.numel()).contiguous()
        return torch.searchsorted(table, flat, right=right, out_int32=True).reshape(*batch, *rest)
