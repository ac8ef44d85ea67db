"""Parameters in files, whatever the backend: safetensors, keyed by the attribute paths of the parameters.

Any tool that reads safetensors reads them. The metadata holds the dims of every parameter. Tensors whose names start
with ``/`` are not parameters: a training run keeps its optimizer and random states in the same file (:mod:`rf.train`),
and :func:`load_params` leaves them out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors
import safetensors.numpy

from rf._core import Tensor
from rf._errors import RfError, UserError
from rf._files import replacing

if TYPE_CHECKING:
    from rf.nn.module import Module

__all__ = [
    "check_params_complete",
    "load_params",
    "load_torch_checkpoint",
    "param_arrays",
    "read_arrays",
    "restore_params",
    "save_params",
    "write_arrays",
]

_KEY = "rf"
_VERSION = 1


def save_params(
    values: Module | Mapping[str, Any],
    filename: str | os.PathLike[str],
    *,
    step: int | None = None,
    epoch: int | None = None,
) -> None:
    """Writes parameters to a safetensors file, which replaces an older one atomically.

    Args:
        values: a module, of which all parameters are saved (a tied one once, under its first name), or Tensors and
            arrays by name.
        step, epoch: kept in the metadata.

    Raises:
        UserError: if the file cannot be written; an older one is then untouched.
    """
    arrays, metadata = param_arrays(values)
    metadata |= {key: number for key, number in (("step", step), ("epoch", epoch)) if number is not None}
    write_arrays(filename, arrays, metadata)


def load_params(filename: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """The parameters in a file of :func:`save_params`, or in the checkpoint of a training run, by name.

    bfloat16 values come as float32, as NumPy has no such type.

    Raises:
        UserError: if the file is missing, cut short, or not safetensors.
    """
    arrays, _ = read_arrays(filename)
    return {name: array for name, array in arrays.items() if not name.startswith("/")}


def load_torch_checkpoint(filename: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """The tensors of a file written by ``torch.save``, by name: a state dict, or one under the key ``model``.

    Only tensors and plain values are loaded, so that a file cannot run code.

    Raises:
        UserError: if the file cannot be read, or holds no state dict.
    """
    import torch

    path = Path(filename)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as exc:
        raise UserError(f"{path}: cannot be read ({exc.strerror or exc}); check the path") from exc
    except Exception as exc:  # torch raises RuntimeError, EOFError, UnpicklingError and more for bad files
        raise UserError(f"{path}: not a torch checkpoint of plain tensors ({_first_line(exc)})") from exc
    if isinstance(content, Mapping) and isinstance(content.get("model"), Mapping):
        content = content["model"]
    if not isinstance(content, Mapping) or not all(isinstance(value, torch.Tensor) for value in content.values()):
        raise UserError(f"{path}: holds no state dict; save model.state_dict(), or a dict with it as 'model'")
    tensors = {name: value.float() if value.dtype is torch.bfloat16 else value for name, value in content.items()}
    return {str(name): value.detach().numpy() for name, value in tensors.items()}


def check_params_complete(model: Module, params: Mapping[str, Any], *, allow_missing: bool = False) -> list[str]:
    """Compares names and shapes of `params` with those of a model.

    Args:
        model: has the wanted parameters.
        params: arrays by name.
        allow_missing: whether `params` may lack some. Those ``non_critical_for_restore`` always may.

    Returns:
        the names that are in both, in the order of the model: what to set.

    Raises:
        UserError: in one line, which names the first parameter that is missing, unexpected or of another shape.
    """
    own = dict(model.named_parameters())
    problems = []
    missing = [name for name, p in own.items() if name not in params and not p.non_critical_for_restore]
    if missing and not allow_missing:
        problems.append(f"parameter {missing[0]} is missing{_and_more(missing)}")
    unexpected = [name for name in params if name not in own]
    if unexpected:
        problems.append(f"{unexpected[0]} is no parameter of the model{_and_more(unexpected)}")
    common = [name for name in own if name in params]
    differing = [name for name in common if np.shape(params[name]) != _shape(own[name])]
    if differing:
        name = differing[0]
        shape, dims = tuple(np.shape(params[name])), ", ".join(map(repr, own[name].dims))
        problems.append(f"parameter {name} has shape {shape}, the model has {{{dims}}}{_and_more(differing)}")
    if problems:
        raise UserError("these are parameters of another model: " + "; ".join(problems))
    return common


def restore_params(model: Module, params: Mapping[str, np.ndarray], *, allow_missing: bool = False) -> None:
    """Sets the parameters of a model from arrays, all of them or, when it raises, none.

    Raises:
        UserError: see :func:`check_params_complete`.
    """
    names = check_params_complete(model, params, allow_missing=allow_missing)
    own = dict(model.named_parameters())
    for name in names:
        own[name].assign(params[name])


def param_arrays(values: Module | Mapping[str, Any]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Parameters as arrays by name, and metadata with their dims; for :func:`write_arrays`."""
    named = dict(values) if isinstance(values, Mapping) else dict(values.named_parameters())
    arrays: dict[str, np.ndarray] = {}
    dims: dict[str, list[tuple[str, int]]] = {}
    for name, value in named.items():
        if name.startswith("/"):
            raise RfError(f"the name {name!r} cannot be that of a parameter, as it starts with a slash")
        if isinstance(value, Tensor):
            dims[name] = [(dim.name or "", size) for dim, size in zip(value.dims, _shape(value))]
            value = value.numpy()
        arrays[name] = np.asarray(value)
    return arrays, {"dims": dims}


def write_arrays(
    filename: str | os.PathLike[str], arrays: Mapping[str, np.ndarray], metadata: Mapping[str, Any]
) -> None:
    """Writes a safetensors file of `arrays`, atomically. Equal content gives an equal file.

    Args:
        filename: replaced when it exists.
        arrays: bool, integer or float, by name.
        metadata: JSON values by name.

    Raises:
        UserError: if the file cannot be written; an older one is then untouched.
    """
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf" or not array.dtype.isnative:
            raise RfError(f"{name}: arrays of {array.dtype} cannot be saved as safetensors")
    # The library writes the memory of an array as it lies there, whatever its strides say.
    contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    # One entry, as the library writes several in an order that changes from call to call.
    text = json.dumps({"version": _VERSION, **metadata})
    with replacing(filename) as temporary:
        try:
            safetensors.numpy.save_file(contiguous, temporary, {_KEY: text})
        except safetensors.SafetensorError as exc:
            raise OSError(_first_line(exc)) from exc


def read_arrays(filename: str | os.PathLike[str]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """All arrays of a safetensors file, by name, and the metadata that :func:`write_arrays` was given.

    The metadata is empty for files of other programs.

    Raises:
        UserError: if the file is missing, cut short, or not safetensors.
    """
    path = Path(filename)
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            text = (file.metadata() or {}).get(_KEY, "{}")
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        return arrays, json.loads(text)
    except OSError as exc:
        # The library's own text has no strerror, and names no reason for a directory.
        reason = "no such file" if not path.exists() else "it is a directory" if path.is_dir() else exc.strerror or exc
        raise UserError(f"{path}: cannot be read ({reason}); check the path") from exc
    except (safetensors.SafetensorError, ValueError) as exc:
        raise UserError(
            f"{path}: cut short, damaged or not safetensors ({_first_line(exc)}); use another copy, "
            "or delete it and start again"
        ) from exc


def _shape(x: Tensor) -> tuple[int, ...]:
    return tuple(dim.get_dim_value() for dim in x.dims)


def _and_more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


def _first_line(exc: BaseException) -> str:
    return str(exc).strip().partition("\n")[0]
