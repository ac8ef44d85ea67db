"""The backend `meta`, and meta in place of another backend."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import rf
from rf.backend import backend_of_raw, get_backend, selected_backend_name
from rf.backends.meta import MetaArray

NAMES = ["meta", "meta:numpy", "meta:torch", "meta:tensorflow"]


@pytest.mark.parametrize("name", NAMES)
def test_each_is_a_backend_of_its_own(name: str) -> None:
    backend = get_backend(name)
    assert backend is get_backend(name)
    assert backend.name == name
    assert backend.stands_for == (name.partition(":")[2] or None)
    assert not backend.computes
    with rf.use_backend(name):
        assert selected_backend_name() == name
        x = rf.ones([rf.Dim(3)])
    assert x.backend is backend
    assert isinstance(x.raw_tensor, MetaArray)
    assert backend_of_raw(x.raw_tensor) is backend
    assert rf.convert_to_tensor(x.raw_tensor, dims=x.dims, dtype="float32").backend is backend
    assert name in repr(x)
    assert name in repr(x.raw_tensor)


@pytest.mark.parametrize("name", ["meta:jax", "meta:meta", "meta:", "meta:torch:cpu", "torch:meta", "numpy:"])
def test_unknown_names(name: str) -> None:
    for function in (get_backend, rf.select_backend, lambda name: rf.use_backend(name).__enter__()):
        with pytest.raises(rf.UserError, match=f"unknown backend '{name}'; choose one of: numpy, .*; or meta:NAME"):
            function(name)


def test_it_answers_as_the_backend_that_it_stands_for() -> None:
    dim = rf.Dim(3)
    for name in NAMES:
        with rf.use_backend(name):
            x = rf.ones([dim])
            rf.set_requires_gradient(x)
            y = rf.reduce_sum(x, axis=dim)
            if name == "meta:numpy":
                with pytest.raises(rf.BackendError, match="backend meta:numpy computes no gradients"):
                    rf.gradient(y, x)
            else:
                assert rf.gradient(y, x).dims == (dim,)


@pytest.mark.parametrize(
    "name", ["numpy", *(pytest.param(n, marks=pytest.mark.needs(n)) for n in ("torch", "tensorflow"))]
)
def test_what_is_said_of_a_backend_before_it_is_loaded_is_so(name: str) -> None:
    assert get_backend(f"meta:{name}").has_gradients == get_backend(name).has_gradients


def test_they_do_not_mix() -> None:
    dim = rf.Dim(3)
    a, b = (rf.convert_to_tensor(np.ones(3), dims=[dim], _backend=name) for name in ("meta", "meta:torch"))
    with pytest.raises(rf.BackendError, match=r"operands of different backends \(meta, meta:torch\)"):
        a + b
    assert (a + rf.convert_backend(b, "meta")).backend is get_backend("meta")


def test_sizes_mix_with_each_of_them() -> None:
    batch = rf.Dim(2, name="B")
    time = rf.Dim(None, name="T").fill([3, 2], [batch])
    for name in NAMES:
        with rf.use_backend(name):
            x = rf.reduce_sum(rf.ones([batch, time]), axis=time) / rf.cast(time.get_size_tensor(), "float32")
        assert x.backend is get_backend(name)
        assert x.dims == (batch,)


RUN = """
import sys
for name in ("torch", "tensorflow", "keras", "jax"):
    sys.modules[name] = None
import rf
dim = rf.Dim(3)
x = rf.reduce_sum(rf.relu(rf.ones([dim])), axis=dim)
print(x.backend.name, rf.get_selected_backend())
"""


def run(directory: Path, **env: str) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RF_") or name == "RF_CORE"}
    clean["PYTHONPATH"] = os.pathsep.join([str(Path(rf.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-W", "error", "-c", RUN]
    result = subprocess.run(command, capture_output=True, text=True, env=clean | env, cwd=directory)
    return result.stdout.strip() or result.stderr


def test_settings_select_it_where_the_framework_is_missing(tmp_path: Path) -> None:
    assert run(tmp_path, RF_BACKEND="meta:tensorflow") == "meta:tensorflow meta:tensorflow"
    assert "RF_BACKEND: unknown backend 'meta:jax'; choose one of" in run(tmp_path, RF_BACKEND="meta:jax")
    if sys.version_info >= (3, 11):
        (tmp_path / "rf.toml").write_text('backend = "meta:torch"\n')
        assert run(tmp_path) == "meta:torch meta:torch"
