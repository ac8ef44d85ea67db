"""The native torch path: building it, lazily wrapped tensors, and that torch's own machinery sees ordinary ops."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest

import rf
from rf import _core

pytestmark = [pytest.mark.needs("torch"), pytest.mark.needs("native core"), pytest.mark.needs("compiler")]
if not _core.NATIVE:
    pytestmark.append(pytest.mark.skip(reason="this run is on the Python core"))


@pytest.fixture(autouse=True)
def _torch_backend():
    with rf.use_backend("torch"):
        yield


def run_python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONWARNINGS": "", **env},
        timeout=300,
        check=False,
    )


def make(dims: list[rf.Dim], grad: bool = False):
    import torch

    raw = torch.randn([d.get_dim_value() for d in dims], requires_grad=grad)
    return rf.convert_to_tensor(raw, dims=dims)


USE = """
import torch, rf
rf.select_backend("torch")
from rf.backends.torch import native_path_status
F = rf.Dim(3, name="F")
x = rf.convert_to_tensor(torch.ones(3), dims=[F])
print((x + 1.0).raw_tensor.tolist(), *native_path_status())
"""


def test_active():
    from rf.backends.torch import native_path_status

    assert native_path_status() == (True, "")


def test_two_processes_build_at_once_on_an_empty_cache(tmp_path: Path):
    env = {**os.environ, "RF_CACHE_DIR": str(tmp_path / "cache"), "PYTHONWARNINGS": ""}
    command = [sys.executable, "-c", USE]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) for _ in range(2)
    ]
    outputs = [p.communicate(timeout=300) for p in running]
    assert [p.returncode for p in running] == [0, 0], outputs
    assert [out.split() for out, _ in outputs] == [["[2.0,", "2.0,", "2.0]", "True"]] * 2
    assert sum("compiling" in err for _, err in outputs) == 1
    assert len(list((tmp_path / "cache").glob("*.so"))) == 1
    assert not list((tmp_path / "cache").glob("building-*"))


@pytest.mark.parametrize("how", ["no compiler", "broken compiler", "cache not writable", "switched off"])
def test_fallback_is_right_and_says_why(how: str, tmp_path: Path):
    env = {"RF_CACHE_DIR": str(tmp_path)}
    if how == "no compiler":
        env["CXX"] = "/nonexistent/g++"
    elif how == "broken compiler":
        env["CXX"] = "/bin/false"
    elif how == "cache not writable":
        env["RF_CACHE_DIR"] = "/proc/rf-cache"
    else:
        env["RF_TORCH_NATIVE"] = "0"
    done = run_python(USE, **env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[2.0, 2.0, 2.0] False ")
    assert "Traceback" not in done.stderr
    if how != "switched off":
        assert "rf: torch runs without its native path" in done.stderr
    if how == "cache not writable":
        assert "RF_CACHE_DIR" in done.stderr


def test_raw_tensors_come_out_as_they_went_in():
    import torch

    F = rf.Dim(3, name="F")
    for raw in (torch.ones(3), torch.nn.Parameter(torch.ones(3)), torch.arange(3)):
        x = rf.convert_to_tensor(raw, dims=[F])
        assert x.raw_tensor is raw
        assert x.raw_tensor is x.raw_tensor
        raw_id = id(raw)
        del raw
        gc.collect()
        assert id(x.raw_tensor) == raw_id


def test_result_outlives_the_rf_tensor_and_shares_memory():
    F = rf.Dim(3, name="F")
    raw = (make([F]) * 2.0).raw_tensor
    gc.collect()
    x = rf.convert_to_tensor(raw, dims=[F])
    raw.zero_()
    assert x.numpy().tolist() == [0.0] * 3


def test_torch_errors_become_python_errors():
    import torch

    F = rf.Dim(None, name="F")
    F.fill(3)
    x = rf.convert_to_tensor(torch.ones(3), dims=[F])
    F.fill(4)
    y = rf.convert_to_tensor(torch.ones(4), dims=[F])
    with pytest.raises(RuntimeError, match="size of tensor"):
        x + y
    assert (y + y).numpy().tolist() == [2.0] * 4


def model(x, w, b, in_dim, out_dim, axis):
    from rf.ops.contract import linear

    y = rf.relu(linear(x, w, b, in_dim, out_dim)) * 0.5 + 1.0
    return rf.reduce_mean(rf.softmax(y, axis=axis) * y, axis=axis)


def parts(grad: bool = False):
    B, F, G = rf.Dim(2, name="B"), rf.Dim(3, name="F"), rf.Dim(4, name="G")
    T = rf.Dim(rf.convert_to_tensor(np.array([5, 2], dtype="int32"), dims=[B]), name="T")
    return make([B, T, F]), make([F, G], grad), make([G], grad), F, G, T, B


def test_make_fx_records_aten_ops():
    from torch.fx.experimental.proxy_tensor import make_fx

    x, w, b, F, G, T, B = parts()

    def f(raw):
        return model(rf.convert_to_tensor(raw, dims=[B, T, F]), w, b, F, G, T).raw_tensor

    traced = make_fx(f)(x.raw_tensor)
    names = {str(n.target) for n in traced.graph.nodes if n.op == "call_function"}
    assert any("addmm" in n for n in names) and any("relu" in n for n in names), names
    other = make([B, T, F])
    np.testing.assert_allclose(traced(other.raw_tensor).numpy(), f(other.raw_tensor).numpy(), rtol=1e-5)


def test_func_grad_and_vmap():
    import torch

    x, w, b, F, G, T, B = parts()

    def loss(raw_w):
        y = model(x, rf.convert_to_tensor(raw_w, dims=[F, G]), b, F, G, T)
        return rf.reduce_sum(y, axis=[B, G]).raw_tensor

    got = torch.func.grad(loss)(w.raw_tensor)
    raw = w.raw_tensor.clone().requires_grad_()
    (want,) = torch.autograd.grad(loss(raw), raw)
    np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-5, atol=1e-7)

    N = rf.Dim(3, name="N")

    def row(raw):
        return rf.softmax(rf.convert_to_tensor(raw, dims=[N]) * 2.0, axis=N).raw_tensor

    batch = torch.randn(5, 3)
    np.testing.assert_allclose(torch.func.vmap(row)(batch).numpy(), torch.softmax(batch * 2, -1).numpy(), rtol=1e-5)


def test_autocast_gives_the_dtype_of_the_kernel():
    import torch

    x, w, b, F, G, T, B = parts()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = rf.matmul(x, w, reduce=F)
    assert y.dtype == "bfloat16"
    assert y.raw_tensor.dtype is torch.bfloat16


def test_gradients_equal_those_of_the_python_backend(tmp_path: Path):
    code = """
    import numpy as np, torch, rf, sys
    sys.path.insert(0, %r)
    rf.select_backend("torch")
    torch.manual_seed(1)
    import test_native_torch as t
    x, w, b, F, G, T, B = t.parts(grad=True)
    x.raw_tensor.requires_grad_()
    y = rf.reduce_sum(t.model(x, w, b, F, G, T), axis=[B, G])
    y.raw_tensor.backward()
    np.savez(sys.argv[1] if len(sys.argv) > 1 else %r, *[p.raw_tensor.grad.numpy() for p in (x, w, b)], y.numpy())
    """
    files = [str(tmp_path / "native.npz"), str(tmp_path / "python.npz")]
    for file, native in zip(files, "10"):
        done = run_python(code % (str(Path(__file__).parent), file), RF_TORCH_NATIVE=native)
        assert done.returncode == 0, done.stderr
    a, b = (np.load(f) for f in files)
    assert len(a.files) == 4
    for name in a.files:
        np.testing.assert_allclose(a[name], b[name], rtol=1e-5, atol=1e-6)


def test_eight_threads():
    x, w, b, F, G, T, B = parts()
    want = model(x, w, b, F, G, T).numpy()
    wrong: list[object] = []

    def work() -> None:
        with rf.use_backend("torch"):
            for _ in range(200):
                got = model(x, w, b, F, G, T).numpy()
                if not np.allclose(got, want, rtol=1e-5):
                    wrong.append(got)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


@pytest.mark.skipif("libasan" in os.environ.get("LD_PRELOAD", ""), reason="the sanitizer keeps freed memory")
def test_no_leak_over_steps_with_new_dims():
    done = run_python(
        """
        import gc, resource, torch, numpy as np, rf
        rf.select_backend("torch")
        torch.set_num_threads(1)
        F, G = rf.Dim(16, name="F"), rf.Dim(16, name="G")
        w = rf.convert_to_tensor(torch.randn(16, 16, requires_grad=True), dims=[F, G])
        gc.disable()  # everything of a step must die by reference counts alone
        def step(i):
            B = rf.Dim(4, name="B")
            T = rf.Dim(rf.convert_to_tensor(np.array([20 + i % 5, 7, 3, 1], dtype="int32"), dims=[B]), name="T")
            x = rf.convert_to_tensor(torch.randn(4, 20 + i % 5, 16), dims=[B, T, F])
            y = rf.softmax(rf.matmul(x, w, reduce=F), axis=T)
            rf.reduce_sum(rf.reduce_mean(y, axis=(T + 1 - 1)), axis=[B, G]).raw_tensor.backward()
            w.raw_tensor.grad = None
        def memory():
            with open("/proc/self/statm") as f:
                return int(f.read().split()[1]) * resource.getpagesize()
        for i in range(500):
            step(i)
        before = memory()
        for i in range(2500):
            step(i)
        print((memory() - before) / 1e6)
        """
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 4.0, f"resident memory grew by {done.stdout} MB over 2500 steps"


def test_tape_replays_the_same_values_and_graph():
    import torch

    from rf.backend import get_backend

    backend = get_backend("torch")
    x, w, b, F, G, T, B = parts(grad=True)
    _core.start_recording(backend)
    try:
        loss = rf.reduce_sum(model(x, w, b, F, G, T), axis=[B, G])
    finally:
        tape = _core.stop_recording(backend)
    names = [e[0] for e in tape.entries()]
    assert "linear" in names and "masked_softmax" in names
    (again,), times = tape.replay([loss], True)
    assert torch.equal(again, loss.raw_tensor) and again is not loss.raw_tensor
    assert len(times) == len(names) and all(t > 0 for t in times)
    again.backward()
    got = w.raw_tensor.grad.clone()
    w.raw_tensor.grad = None
    loss.raw_tensor.backward()
    assert torch.equal(got, w.raw_tensor.grad)
    assert tape.replay([loss])[1] is None
    with pytest.raises(RuntimeError, match="not recording"):
        _core.stop_recording(backend)


def test_every_native_kernel_is_one_of_the_backend():
    from rf.backend import get_backend
    from rf.backends import _torch_native

    backend = get_backend("torch")
    kernels = _torch_native.load().kernels()
    assert len(kernels) == len(set(kernels)) > 80
    assert [name for name in kernels if not callable(getattr(backend, name, None))] == []
