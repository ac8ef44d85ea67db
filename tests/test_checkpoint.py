"""Checkpoint files: what comes back, what is refused, and that a file is replaced whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import rf
from rf import checkpoint
from rf._files import replacing, write_json
from rf.checkpoint import check_params_complete, load_params, load_torch_checkpoint, restore_params, save_params

BACKENDS = ["numpy", pytest.param("torch", marks=pytest.mark.needs("torch"))]


class Inner(rf.Module):
    def __init__(self, in_dim: rf.Dim, out_dim: rf.Dim) -> None:
        super().__init__()
        self.weight = rf.Parameter([in_dim, out_dim])
        self.weight.initial = rf.init.Glorot()


class Model(rf.Module):
    def __init__(self, in_size: int = 3, out_size: int = 2) -> None:
        super().__init__()
        in_dim, out_dim = rf.Dim(in_size, name="in"), rf.Dim(out_size, name="out")
        self.first = Inner(in_dim, out_dim)
        self.tied = self.first
        self.second = Inner(in_dim, out_dim)
        self.bias = rf.Parameter([out_dim])
        self.tied_bias = self.bias
        self.count = rf.Parameter([], dtype="int64", auxiliary=True)


NAMES = {"first.weight", "second.weight", "bias", "count"}


def values(model: rf.Module) -> dict[str, np.ndarray]:
    return {name: p.numpy().copy() for name, p in model.named_parameters()}


@pytest.mark.parametrize("backend", BACKENDS)
def test_save_and_restore(tmp_path: Path, backend: str) -> None:
    path = tmp_path / "model.safetensors"
    with rf.use_backend(backend):
        rf.set_random_seed(1)
        model = Model()
        save_params(model, path, step=7, epoch=2)
        rf.set_random_seed(2)
        other = Model()
        before = values(other)
        assert not np.array_equal(before["first.weight"], values(model)["first.weight"])
        restore_params(other, load_params(path))
    expected = values(model)
    assert set(expected) == NAMES  # tied parameters once
    for name, array in values(other).items():
        np.testing.assert_array_equal(array, expected[name])
        assert array.dtype == expected[name].dtype
    assert other.tied is other.first and other.tied_bias is other.bias
    _, metadata = checkpoint.read_arrays(path)
    assert (metadata["step"], metadata["epoch"]) == (7, 2)
    assert metadata["dims"]["first.weight"] == [["in", 3], ["out", 2]]


@pytest.mark.needs("torch")
def test_of_one_backend_into_another(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with rf.use_backend("torch"):
        model = Model()
    save_params(model, path)
    with rf.use_backend("numpy"):
        other = Model()
        restore_params(other, load_params(path))
    np.testing.assert_array_equal(other.second.weight.numpy(), model.second.weight.numpy())


def test_arrays_of_any_layout_and_type(tmp_path: Path) -> None:
    arrays = {
        "scalar": np.array(1.5),
        "empty": np.zeros((0, 3), dtype=np.float32),
        "transposed": np.arange(6, dtype=np.int32).reshape(2, 3).T,
        "strided": np.arange(10, dtype=np.int64)[::3],
        "bool": np.array([True, False]),
    }
    save_params(arrays, tmp_path / "a.safetensors")
    loaded = load_params(tmp_path / "a.safetensors")
    assert loaded.keys() == arrays.keys()
    for name, array in arrays.items():
        assert loaded[name].dtype == array.dtype and loaded[name].shape == array.shape
        np.testing.assert_array_equal(loaded[name], array)


@pytest.mark.needs("torch")
def test_bfloat16_keeps_its_values(tmp_path: Path) -> None:
    with rf.use_backend("torch"):
        model = Model()
        model.to(dtype="bfloat16")
        save_params(model, tmp_path / "a.safetensors")
        other = Model()
        other.to(dtype="bfloat16")
        restore_params(other, load_params(tmp_path / "a.safetensors"))
    assert other.bias.dtype == "bfloat16"
    np.testing.assert_array_equal(other.first.weight.numpy(), model.first.weight.numpy())


def test_names_with_slash_are_not_parameters(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    checkpoint.write_arrays(path, {"w": np.ones(2), "/optimizer/w": np.ones(2)}, {})
    assert set(load_params(path)) == {"w"}
    with pytest.raises(rf.RfError, match="'/w' cannot be"):
        save_params({"/w": np.ones(2)}, path)


def test_unsupported_dtype(tmp_path: Path) -> None:
    with pytest.raises(rf.RfError, match="c: arrays of complex64 cannot be saved"):
        save_params({"c": np.ones(2, dtype=np.complex64)}, tmp_path / "a.safetensors")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p.pop("bias"), "parameter bias is missing"),
        (lambda p: (p.pop("bias"), p.pop("count")), r"parameter bias is missing \(and 1 more\)"),
        (lambda p: p.update(extra=np.ones(1)), "extra is no parameter of the model"),
        (lambda p: p.update(bias=np.ones(3)), r"parameter bias has shape \(3,\), the model has {out=2}"),
        (lambda p: p.update(bias=np.ones((2, 1))), r"parameter bias has shape \(2, 1\), the model has {out=2}"),
    ],
)
def test_of_another_model(change, message: str) -> None:
    with rf.use_backend("numpy"):
        model = Model()
        before = values(model)
        params = {name: array + 1 for name, array in before.items()}
        change(params)
        with pytest.raises(rf.UserError, match=message) as info:
            restore_params(model, params)
        assert "\n" not in str(info.value)
    for name, array in values(model).items():  # nothing was set
        np.testing.assert_array_equal(array, before[name])


def test_allow_missing() -> None:
    with rf.use_backend("numpy"):
        model = Model()
        params = {"bias": np.array([3.0, 4.0], dtype=np.float32)}
        assert check_params_complete(model, params, allow_missing=True) == ["bias"]
        restore_params(model, params, allow_missing=True)
        np.testing.assert_array_equal(model.bias.numpy(), [3, 4])


def test_non_critical_parameters_may_be_missing() -> None:
    with rf.use_backend("numpy"):
        model = Model()
        model.bias.non_critical_for_restore = True
        params = values(model)
        del params["bias"]
        assert set(check_params_complete(model, params)) == NAMES - {"bias"}


# -- bad files


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.safetensors"
    save_params({"w": np.arange(1000, dtype=np.float32)}, path)
    return path


@pytest.mark.parametrize("keep", [0, 1, 7, 8, 20, 200, -1])
def test_cut_short(good: Path, keep: int) -> None:
    data = good.read_bytes()
    good.write_bytes(data[:keep])
    with pytest.raises(
        rf.UserError, match=r"good\.safetensors: cut short, damaged or not safetensors .*delete it"
    ) as info:
        load_params(good)
    assert "\n" not in str(info.value)


@pytest.mark.parametrize("content", [b"PK\x03\x04 a zip", b"\0" * 4096, b"hello\n" * 1000, b"\xff" * 100])
def test_not_safetensors(good: Path, content: bytes) -> None:
    good.write_bytes(content)
    with pytest.raises(rf.UserError, match="not safetensors"):
        load_params(good)


def test_missing_or_directory(tmp_path: Path) -> None:
    with pytest.raises(rf.UserError, match=r"x: cannot be read \(no such file\)"):
        load_params(tmp_path / "x")
    with pytest.raises(rf.UserError, match=r"cannot be read \(it is a directory\)"):
        load_params(tmp_path)


@pytest.mark.needs("torch")
def test_torch_checkpoint(tmp_path: Path) -> None:
    import torch

    path = tmp_path / "a.pt"
    state = {"w": torch.arange(3.0), "b": torch.ones(2, dtype=torch.bfloat16)}
    for content in state, {"model": state, "step": 3}:
        torch.save(content, path)
        loaded = load_torch_checkpoint(path)
        assert set(loaded) == {"w", "b"}
        np.testing.assert_array_equal(loaded["w"], [0, 1, 2])
        np.testing.assert_array_equal(loaded["b"], [1, 1])
    torch.save([1, 2], path)
    with pytest.raises(rf.UserError, match="holds no state dict"):
        load_torch_checkpoint(path)
    path.write_bytes(b"nothing of this kind")
    with pytest.raises(rf.UserError, match=r"a\.pt: not a torch checkpoint"):
        load_torch_checkpoint(path)
    with pytest.raises(rf.UserError, match="cannot be read"):
        load_torch_checkpoint(tmp_path / "b.pt")


# -- writing


def test_equal_content_gives_equal_files(tmp_path: Path) -> None:
    for name in "a", "b":
        save_params({"w": np.ones(2), "b": np.zeros(3, dtype=np.int8)}, tmp_path / name, step=1, epoch=2)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_files_of_other_programs(tmp_path: Path) -> None:
    safetensors.numpy.save_file({"w": np.ones(2)}, tmp_path / "a", {"format": "pt"})
    arrays, metadata = checkpoint.read_arrays(tmp_path / "a")
    assert (set(arrays), metadata) == ({"w"}, {})


def test_replaces_whole_file_or_nothing(good: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = good.read_bytes()

    def full_disk(*args: object, **kwargs: object) -> None:
        Path(str(args[1])).write_bytes(b"half")
        raise safetensors.SafetensorError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(safetensors.numpy, "save_file", full_disk)
        with pytest.raises(rf.UserError, match=r"good\.safetensors: cannot be written \(No space left on device\)"):
            save_params({"w": np.ones(1)}, good)
    assert good.read_bytes() == before
    assert [p.name for p in good.parent.iterdir()] == [good.name]
    save_params({"w": np.ones(1)}, good)
    assert load_params(good)["w"].tolist() == [1]


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(rf.UserError, match=r"c\.safetensors: cannot be written"):
        save_params({"w": np.ones(1)}, tmp_path / "no" / "c.safetensors")


def test_replacing(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), replacing(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
        _ = 1 / 0
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["f"]
    with replacing(path) as temporary:
        temporary.write_text("new")
    assert path.read_text() == "new" and os.listdir(tmp_path) == ["f"]


def test_write_json(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"x": [1, None]})
    assert json.loads((tmp_path / "a.json").read_text()) == {"x": [1, None]}
    with pytest.raises(ValueError):
        write_json(tmp_path / "a.json", float("nan"))
    assert json.loads((tmp_path / "a.json").read_text()) == {"x": [1, None]}
