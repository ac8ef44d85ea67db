"""Convolution and pooling over one to three spatial dims.

The padding of a sequence counts as what lies outside of it, whatever it holds: zeros for a convolution, nothing at all
for a pooling window. All lengths follow from the length of the sequence alone, so a sequence gives the same alone and
in a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from rf import dtypes
from rf._core import Op, Tensor, apply
from rf._dim import Dim
from rf._errors import DimError, RfError
from rf._plan import Plan, PlanBuilder
from rf.ops.elementwise import ceil_divide, maximum
from rf.ops.reduce import fill_padding
from rf.ops.shape import with_sizes

__all__ = [
    "calc_conv_out_length",
    "calc_transposed_conv_out_length",
    "conv",
    "make_conv_out_spatial_dims",
    "make_transposed_conv_out_spatial_dims",
    "max_pool",
    "max_pool1d",
    "pool",
    "pool1d",
    "pool2d",
    "pool3d",
    "transposed_conv",
]

Length = TypeVar("Length", int, Dim, Tensor)
IntOrDim = int | Dim
Padding = str | int

_POOL_MODES = ("max", "avg")


# -- lengths


def _int(size: IntOrDim) -> int:
    if isinstance(size, int):
        return size
    if size.dimension is None:
        raise DimError(f"the filter dim {size!r} must be static")
    return size.dimension


def _each(value: Any, n: int, what: str) -> tuple[Any, ...]:
    """One value for each spatial dim."""
    if isinstance(value, (int, str, Dim)):
        return (value,) * n
    if len(value) != n:
        raise RfError(f"{what}={value!r}: needs one value, or one for each of the {n} spatial dims")
    return tuple(value)


def _edges(padding: Padding, size: int, dilation: int) -> tuple[int, int]:
    """How many positions are padded left and right."""
    if isinstance(padding, int):
        return padding, padding
    total = (size - 1) * dilation
    if padding.lower() == "same":
        return total // 2, total - total // 2
    if padding.lower() == "valid":
        return 0, 0
    raise RfError(f"padding must be 'same', 'valid' or an int, got {padding!r}")


def calc_conv_out_length(
    in_length: Length,
    *,
    filter_size: IntOrDim,
    stride: int,
    padding: Padding,
    dilation_rate: int = 1,
    name: str | None = None,
) -> Length:
    """Length of the result of a convolution or pooling, for a length n of the input.

    "same": ceil(n / stride). "valid": ceil((n - (filter_size - 1) * dilation_rate) / stride), at least 0. An int p:
    "valid" for p + n + p.

    :param in_length: an int, a Dim (dim math; stride 1 with "same", or a filter of size 1, gives the same Dim), or an
        int Tensor.
    :param name: of a new Dim.
    """
    size = _int(filter_size)
    if isinstance(padding, str) and padding.lower() == "same":
        cut_left = cut_right = 0
    else:
        left, right = _edges(padding, size, dilation_rate)
        total = (size - 1) * dilation_rate
        cut_left, cut_right = total // 2 - left, total - total // 2 - right
    out: Any
    if isinstance(in_length, Dim):
        out = in_length.base
        if cut_left or cut_right:
            out = out.sub_left(cut_left).sub_right(cut_right)
        if stride != 1:
            out = out.ceildiv_right(stride)
        if name and out.base is not in_length.base:
            out.name = name
    elif isinstance(in_length, Tensor):
        out = ceil_divide(maximum(in_length - (cut_left + cut_right), 0), stride)
    else:
        out = -(-max(in_length - cut_left - cut_right, 0) // stride)
    return out


def make_conv_out_spatial_dims(
    in_spatial_dims: Sequence[Dim],
    *,
    filter_size: IntOrDim | Sequence[IntOrDim],
    padding: Padding | Sequence[Padding],
    strides: int | Sequence[int] = 1,
    dilation_rate: int | Sequence[int] = 1,
    description_prefix: str | None = None,
) -> list[Dim]:
    """The spatial dims that `conv` or `pool` gives, by dim math: always the same objects for the same input dims.

    :param description_prefix: names the new dims `<prefix>:spatial<i>`.
    """
    n = len(in_spatial_dims)
    sizes, paddings = _each(filter_size, n, "filter_size"), _each(padding, n, "padding")
    strides, dilations = _each(strides, n, "strides"), _each(dilation_rate, n, "dilation_rate")
    return [
        calc_conv_out_length(
            dim,
            filter_size=sizes[i],
            stride=strides[i],
            padding=paddings[i],
            dilation_rate=dilations[i],
            name=f"{description_prefix}:spatial{i}" if description_prefix else None,
        )
        for i, dim in enumerate(in_spatial_dims)
    ]


def _transposed_edges(padding: Padding, size: int, stride: int, output_padding: int | None) -> tuple[int, int]:
    """What is added (> 0) or cut (< 0) left and right of the (n - 1) * stride + size positions that n frames reach."""
    mode = padding.lower() if isinstance(padding, str) else "int"
    if mode not in ("same", "valid", "int"):
        raise RfError(f"padding must be 'same', 'valid' or an int, got {padding!r}")
    if isinstance(padding, int):
        return -padding, (output_padding or 0) - padding
    if output_padding is not None:
        cut = size // 2 if mode == "same" else 0
        return -cut, output_padding - cut
    if mode == "valid":
        return 0, max(stride - size, 0)
    left = (size - 1) // 2
    return -left, stride - size + left


def calc_transposed_conv_out_length(
    in_length: Length,
    *,
    filter_size: IntOrDim,
    padding: Padding,
    output_padding: int | None = None,
    stride: int | None = None,
    dilation_rate: int = 1,
    name: str | None = None,
) -> Length:
    """Length of the result of a transposed convolution, for a length n of the input.

    "valid": n * stride + max(filter_size - stride, 0). "same": n * stride. An int p: (n - 1) * stride + filter_size -
    2p. With `output_padding`: (n - 1) * stride + filter_size + output_padding, less 2 * (filter_size // 2) for "same".
    At least 0.

    :param in_length: an int, a Dim or an int Tensor.
    :param stride: default: the filter size.
    :param name: of a new Dim.
    """
    size = (_int(filter_size) - 1) * dilation_rate + 1
    stride = _int(filter_size) if stride is None else stride
    left, right = _transposed_edges(padding, size, stride, output_padding)
    change = size - stride + left + right
    out: Any
    if isinstance(in_length, Dim):
        out = in_length * stride + change
        if name and out.base is not in_length.base:
            out.name = name
    elif isinstance(in_length, Tensor):
        out = maximum(in_length * stride + change, 0)
    else:
        out = max(in_length * stride + change, 0)
    return out


def make_transposed_conv_out_spatial_dims(
    in_spatial_dims: Sequence[Dim],
    *,
    filter_size: IntOrDim | Sequence[IntOrDim],
    padding: Padding | Sequence[Padding],
    output_padding: int | Sequence[int | None] | None = None,
    strides: int | Sequence[int] | None = None,
    dilation_rate: int | Sequence[int] = 1,
    description_prefix: str | None = None,
) -> list[Dim]:
    """The spatial dims that `transposed_conv` gives (without `remove_padding`), by dim math."""
    n = len(in_spatial_dims)
    sizes, paddings = _each(filter_size, n, "filter_size"), _each(padding, n, "padding")
    extra = (None,) * n if output_padding is None else _each(output_padding, n, "output_padding")
    steps = (None,) * n if strides is None else _each(strides, n, "strides")
    dilations = _each(dilation_rate, n, "dilation_rate")
    return [
        calc_transposed_conv_out_length(
            dim,
            filter_size=sizes[i],
            padding=paddings[i],
            output_padding=extra[i],
            stride=steps[i],
            dilation_rate=dilations[i],
            name=f"{description_prefix}:spatial{i}" if description_prefix else None,
        )
        for i, dim in enumerate(in_spatial_dims)
    ]


# -- convolution


def _check_spatial(name: str, x: Tensor, spatial: Sequence[Dim]) -> None:
    if not 1 <= len(spatial) <= 3:
        raise RfError(f"{name}: takes 1 to 3 spatial dims, got {list(spatial)}")
    for d in spatial:
        if d not in x.dims:
            raise DimError(f"{name}: spatial dim {d!r} is not a dim of {x!r}")


def _out_dims(name: str, x: Tensor, out_dims: Sequence[Dim]) -> None:
    for i, d in enumerate(out_dims):
        if any(d == o for o in out_dims[:i]):
            raise DimError(
                f"{name}: the result would have {d!r} twice; the input is {x!r}. "
                "Replace one of them first (rf.replace_dim)."
            )


def _without_batch(out: Tensor, dims: Sequence[Dim]) -> Tensor:
    """Make the result of an empty batch fit its dims: sizes of no sequences have the extent 0, whatever is added to
    them."""
    for d in dims:
        if d.is_dynamic() and d.get_dim_value() == 0:
            spec = (out.dims, out.dtype, out.feature_dim, None)
            (out,) = apply("slice", (out,), (out.get_axis_from_description(d), 0, 0, 1), (spec,))
    return out


def _filter_sides(name: str, filter: Tensor, out_dim: Dim, sizes: Sequence[Dim]) -> tuple[Dim, Dim]:
    """The entries (out, in) of the dims of a filter. In a square one, the input side has the higher match priority."""
    outs = sorted((d for d in filter.dims if d == out_dim), key=lambda d: d.match_priority)
    rest = [d for d in filter.dims if not (outs and d is outs[0]) and d not in sizes]
    if not outs or len(rest) != 1 or len(filter.dims) != 2 + len(sizes):
        raise DimError(
            f"{name}: the filter {filter!r} must have the dims {out_dim!r} (out_dim), one for the input channels, "
            f"and {list(sizes)}"
        )
    return outs[0], rest[0]


def _plan_conv(
    p: PlanBuilder,
    x: Tensor,
    filter: Tensor,
    bias: Tensor | None,
    name: str,
    in_dim: Dim,
    out_dim: Dim,
    spatial: tuple[Dim, ...],
    out_spatial: tuple[Dim, ...],
    filter_size: tuple[Dim, ...],
    options: tuple[Any, ...],
    use_mask: bool,
) -> Plan:
    _check_spatial(name, x, spatial)
    if in_dim not in x.dims:
        raise DimError(f"{name}: the input {x!r} has no dim {in_dim!r} (in_dim); the filter is {filter!r}")
    filter_out, filter_in = _filter_sides(name, filter, out_dim, filter_size)
    dtype = dtypes.floating(dtypes.result_type(x.dtype, filter.dtype))
    slot: Any = p.cast(0, x.dtype, dtype)
    order = list(x.dims)
    if use_mask:
        # Dims that are not convolved are cleared too: frames of NaN would reach the gradient of the filter as 0 * NaN.
        known = [d for d in order if d.base.size_dims and (d in spatial or all(s in order for s in d.base.size_dims))]
        slot, order = fill_padding(p, slot, order, known, 0)
    batch = [d for d in order if d not in spatial and d != in_dim]
    raw_order = [*batch, *(next(d for d in order if d == s) for s in (in_dim, *spatial))]
    weight = p.cast(1, filter.dtype, dtype)
    sides = [filter_in, filter_out] if name == "transposed_conv" else [filter_out, filter_in]
    weight = p.permute(weight, filter.dims, [*sides, *filter_size])
    offset = -1 if bias is None else p.cast(2, bias.dtype, dtype)
    out_dims = [*batch, out_dim.base, *(d.base for d in out_spatial)]
    _out_dims(name, x, out_dims)
    out = p.emit(name, p.permute(slot, order, raw_order), weight, offset, static=options)
    return p.finish(p.out(out, out_dims, dtype, out_dim.base))


_conv = Op("conv", num_tensors=3, planner=_plan_conv, masked=True)


def conv(
    source: Tensor,
    *,
    in_dim: Dim,
    out_dim: Dim,
    in_spatial_dims: Sequence[Dim],
    out_spatial_dims: Sequence[Dim] | None = None,
    filter: Tensor,
    filter_size: Dim | Sequence[Dim],
    padding: Padding | Sequence[Padding],
    strides: int | Sequence[int] | None = None,
    dilation_rate: int | Sequence[int] | None = None,
    groups: int | None = None,
    bias: Tensor | None = None,
    use_mask: bool | None = None,
) -> tuple[Tensor, list[Dim]]:
    """Convolution (cross-correlation) over 1 to 3 dims: {..., in_dim, *in_spatial_dims} -> {..., out_dim,
    *out_spatial_dims}.

    :param source: float; all other dims are batch dims.
    :param in_dim: static.
    :param in_spatial_dims: dims to convolve over.
    :param out_spatial_dims: default: `make_conv_out_spatial_dims`; dims without sizes take theirs over.
    :param filter: {out_dim, in_dim / groups, *filter_size}. Where both channel dims are the same, match priority 1
        marks the input's.
    :param filter_size: static dims of `filter`, one for each spatial dim.
    :param padding: "valid", "same" or an int for both sides; one, or one for each spatial dim. "same" pads (size - 1) *
        dilation zeros, the smaller half on the left, for every stride and length.
    :param strides: default 1.
    :param dilation_rate: default 1.
    :param groups: channels are convolved in so many separate groups.
    :param bias: {out_dim}.
    :param use_mask: treat padded frames as zeros, whatever they hold (default True).
    :returns: (result, out_spatial_dims). A stride of 1 with "same" keeps the Dim. A sequence shorter than a "valid"
        filter gives length 0.

    Numerics of torch.nn.functional.conv1d and its relatives. Raises DimError when a dim is missing or would occur
    twice.
    """
    n = len(in_spatial_dims)
    size_dims = (filter_size,) if isinstance(filter_size, Dim) else tuple(filter_size)
    if len(size_dims) != n:
        raise DimError(f"conv: filter_size {list(size_dims)} needs one dim for each of {list(in_spatial_dims)}")
    steps, dilations = _each(strides or 1, n, "strides"), _each(dilation_rate or 1, n, "dilation_rate")
    paddings = _each(padding, n, "padding")
    groups = groups or 1
    for what, dim in (("in_dim", in_dim), ("out_dim", out_dim)):
        if dim.dimension is None or dim.dimension % groups:
            raise DimError(f"conv: {what} {dim!r} must be static and divisible by groups={groups}")
    made = make_conv_out_spatial_dims(
        in_spatial_dims, filter_size=size_dims, padding=paddings, strides=steps, dilation_rate=dilations
    )
    out_spatial = _given("conv", out_spatial_dims, made)
    edges = tuple(_edges(m, _int(s), d) for m, s, d in zip(paddings, size_dims, dilations))
    out = _conv(
        source,
        filter,
        bias,
        "conv",
        in_dim,
        out_dim,
        tuple(in_spatial_dims),
        tuple(out_spatial),
        size_dims,
        (steps, edges, dilations, groups),
        use_mask is None or use_mask,
    )
    return _without_batch(out, out_spatial), out_spatial


def _given(name: str, given: Sequence[Dim] | None, made: Sequence[Dim]) -> list[Dim]:
    if given is None:
        return list(made)
    if len(given) != len(made):
        raise DimError(f"{name}: out_spatial_dims {list(given)}: needs {len(made)}")
    return [with_sizes(name, g, m) for g, m in zip(given, made)]


def transposed_conv(
    source: Tensor,
    *,
    in_dim: Dim,
    out_dim: Dim,
    in_spatial_dims: Sequence[Dim],
    out_spatial_dims: Sequence[Dim] | None = None,
    filter: Tensor,
    filter_size: Dim | Sequence[Dim],
    padding: Padding | Sequence[Padding],
    remove_padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int | None] | None = None,
    strides: int | Sequence[int] | None = None,
    bias: Tensor | None = None,
    use_mask: bool | None = None,
) -> tuple[Tensor, list[Dim]]:
    """Transposed convolution: {..., in_dim, *in_spatial_dims} -> {..., out_dim, *out_spatial_dims}, longer by the
    strides.

    :param filter: {in_dim, out_dim, *filter_size}. Where both channel dims are the same, match priority 1 marks the
        input's.
    :param padding: "valid" for all positions that the input reaches (n * stride + max(size - stride, 0)); "same" for n
        * stride, the map that is transposed to `conv` with "same"; an int p to cut p positions on both sides.
    :param remove_padding: cut so many frames more on both sides.
    :param output_padding: see `calc_transposed_conv_out_length`.
    :param strides: default: the filter size.
    :returns: (result, out_spatial_dims). See `conv` for the other parameters.

    Numerics of torch.nn.functional.conv_transpose1d and its relatives.
    """
    n = len(in_spatial_dims)
    size_dims = (filter_size,) if isinstance(filter_size, Dim) else tuple(filter_size)
    if len(size_dims) != n:
        raise DimError(
            f"transposed_conv: filter_size {list(size_dims)} needs one dim for each of {list(in_spatial_dims)}"
        )
    sizes = [_int(s) for s in size_dims]
    steps = tuple(sizes) if strides is None else _each(strides, n, "strides")
    paddings, removed = _each(padding, n, "padding"), _each(remove_padding, n, "remove_padding")
    extra = (None,) * n if output_padding is None else _each(output_padding, n, "output_padding")
    made = make_transposed_conv_out_spatial_dims(
        in_spatial_dims, filter_size=size_dims, padding=paddings, output_padding=extra, strides=steps
    )
    made = [d.sub_left(cut).sub_right(cut) for d, cut in zip(made, removed)]
    out_spatial = _given("transposed_conv", out_spatial_dims, made)
    edges = []
    for i in range(n):
        left, right = _transposed_edges(paddings[i], sizes[i], steps[i], extra[i])
        edges.append((left - removed[i], right - removed[i]))
    out = _conv(
        source,
        filter,
        bias,
        "transposed_conv",
        in_dim,
        out_dim,
        tuple(in_spatial_dims),
        tuple(out_spatial),
        size_dims,
        (steps, tuple(edges)),
        use_mask is None or use_mask,
    )
    return _without_batch(out, out_spatial), out_spatial


# -- pooling


def _plan_pool(
    p: PlanBuilder,
    x: Tensor,
    mode: str,
    spatial: tuple[Dim, ...],
    out_spatial: tuple[Dim, ...],
    options: tuple[Any, ...],
    use_mask: bool,
) -> Plan:
    _check_spatial("pool", x, spatial)
    dtype = dtypes.floating(x.dtype) if mode == "avg" or x.dtype == "bool" else x.dtype
    masked = [d.base for d in spatial if d.base.size_dims] if use_mask else []
    missing = []
    for d in masked:
        missing += [s for s in d.base.size_dims or () if s not in x.dims and s not in missing]
    own = [next(d for d in x.dims if d == s) for s in spatial]
    batch = [*missing, *(d for d in x.dims if d not in own)]
    order = [*batch, *own]
    mask: Any = -1
    for d in masked:
        one = p.mask(d, order, keep_leading=True)
        mask = one if mask == -1 else p.emit("logical_and", mask, one)
    slot = p.align(p.cast(0, x.dtype, dtype), x.dims, order)
    out_dims = [*batch, *(d.base for d in out_spatial)]
    _out_dims("pool", x, out_dims)
    slot = p.emit(f"{mode}_pool", slot, mask, static=options)
    return p.finish(p.out(slot, out_dims, dtype, x.feature_dim))


_pool = Op("pool", num_tensors=1, planner=_plan_pool, masked=True)


def pool(
    source: Tensor,
    *,
    nd: int | None = None,
    mode: str,
    pool_size: int | Sequence[int],
    padding: Padding | Sequence[Padding] = "valid",
    dilation_rate: int | Sequence[int] = 1,
    strides: int | Sequence[int] | None = None,
    in_spatial_dims: Sequence[Dim] | Dim,
    out_spatial_dims: Sequence[Dim] | Dim | None = None,
    use_mask: bool | None = None,
) -> tuple[Tensor, list[Dim]]:
    """Largest value or mean of each window over 1 to 3 dims: {..., *in_spatial_dims} -> {..., *out_spatial_dims}.

    Only frames inside of a sequence count: neither explicit padding nor the padding of shorter sequences takes part in
    a maximum or a mean, and a mean divides by the number of frames that did. A window without any gives 0.

    :param source: "avg" of integers is computed in the default float dtype.
    :param nd: number of spatial dims, to check.
    :param mode: "max" or "avg".
    :param pool_size: int, or one for each spatial dim; likewise for the next ones.
    :param padding: "valid", "same" or an int, as in `conv`.
    :param strides: default: `pool_size`.
    :param in_spatial_dims: dims to pool over.
    :param out_spatial_dims: default: `make_conv_out_spatial_dims`; dims without sizes take theirs over.
    :param use_mask: leave out padded frames (default True); False treats them as frames.
    :returns: (result, out_spatial_dims).

    Raises DimError when a dim is missing or would occur twice.
    """
    if mode not in _POOL_MODES:
        raise RfError(f"pool: unknown mode {mode!r}; choose one of {', '.join(_POOL_MODES)}")
    spatial = (in_spatial_dims,) if isinstance(in_spatial_dims, Dim) else tuple(in_spatial_dims)
    given = (out_spatial_dims,) if isinstance(out_spatial_dims, Dim) else out_spatial_dims
    n = len(spatial)
    if nd is not None and nd != n:
        raise DimError(f"pool: nd={nd}, but in_spatial_dims are {list(spatial)}")
    sizes = _each(pool_size, n, "pool_size")
    steps = sizes if strides is None else _each(strides, n, "strides")
    paddings, dilations = _each(padding, n, "padding"), _each(dilation_rate, n, "dilation_rate")
    made = make_conv_out_spatial_dims(
        spatial, filter_size=sizes, padding=paddings, strides=steps, dilation_rate=dilations
    )
    out_spatial = _given("pool", given, made)
    edges = tuple(_edges(m, s, d) for m, s, d in zip(paddings, sizes, dilations))
    options = (sizes, steps, edges, dilations)
    out = _pool(source, mode, spatial, tuple(out_spatial), options, use_mask is None or use_mask)
    return _without_batch(out, out_spatial), out_spatial


def max_pool(
    source: Tensor,
    *,
    pool_size: int | Sequence[int],
    padding: Padding | Sequence[Padding] = "valid",
    dilation_rate: int | Sequence[int] = 1,
    strides: int | Sequence[int] | None = None,
    in_spatial_dims: Sequence[Dim] | Dim,
    out_spatial_dims: Sequence[Dim] | Dim | None = None,
) -> tuple[Tensor, list[Dim]]:
    """`pool` with mode "max"."""
    return pool(
        source,
        mode="max",
        pool_size=pool_size,
        padding=padding,
        dilation_rate=dilation_rate,
        strides=strides,
        in_spatial_dims=in_spatial_dims,
        out_spatial_dims=out_spatial_dims,
    )


def max_pool1d(
    source: Tensor,
    *,
    pool_size: int,
    padding: Padding = "valid",
    dilation_rate: int = 1,
    strides: int | None = None,
    in_spatial_dim: Dim,
    out_spatial_dim: Dim | None = None,
) -> tuple[Tensor, Dim]:
    """`pool1d` with mode "max"."""
    return pool1d(
        source,
        mode="max",
        pool_size=pool_size,
        padding=padding,
        dilation_rate=dilation_rate,
        strides=strides,
        in_spatial_dim=in_spatial_dim,
        out_spatial_dim=out_spatial_dim,
    )


def pool1d(
    source: Tensor,
    *,
    mode: str,
    pool_size: int,
    padding: Padding = "valid",
    dilation_rate: int = 1,
    strides: int | None = None,
    in_spatial_dim: Dim,
    out_spatial_dim: Dim | None = None,
) -> tuple[Tensor, Dim]:
    """`pool` over one dim; returns (result, out_spatial_dim)."""
    out, (dim,) = pool(
        source,
        mode=mode,
        pool_size=pool_size,
        padding=padding,
        dilation_rate=dilation_rate,
        strides=strides,
        in_spatial_dims=(in_spatial_dim,),
        out_spatial_dims=None if out_spatial_dim is None else (out_spatial_dim,),
    )
    return out, dim


def pool2d(
    source: Tensor,
    *,
    mode: str,
    pool_size: int | Sequence[int],
    padding: Padding | Sequence[Padding] = "valid",
    dilation_rate: int | Sequence[int] = 1,
    strides: int | Sequence[int] | None = None,
    in_spatial_dims: Sequence[Dim],
    out_spatial_dims: Sequence[Dim] | None = None,
) -> tuple[Tensor, list[Dim]]:
    """`pool` over two dims."""
    return pool(
        source,
        nd=2,
        mode=mode,
        pool_size=pool_size,
        padding=padding,
        dilation_rate=dilation_rate,
        strides=strides,
        in_spatial_dims=in_spatial_dims,
        out_spatial_dims=out_spatial_dims,
    )


def pool3d(
    source: Tensor,
    *,
    mode: str,
    pool_size: int | Sequence[int],
    padding: Padding | Sequence[Padding] = "valid",
    dilation_rate: int | Sequence[int] = 1,
    strides: int | Sequence[int] | None = None,
    in_spatial_dims: Sequence[Dim],
    out_spatial_dims: Sequence[Dim] | None = None,
) -> tuple[Tensor, list[Dim]]:
    """`pool` over three dims."""
    return pool(
        source,
        nd=3,
        mode=mode,
        pool_size=pool_size,
        padding=padding,
        dilation_rate=dilation_rate,
        strides=strides,
        in_spatial_dims=in_spatial_dims,
        out_spatial_dims=out_spatial_dims,
    )
