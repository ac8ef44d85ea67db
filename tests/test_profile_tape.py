"""Recording of kernel calls and their replay."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import rf
from rf.backend import Backend, get_backend, use_backend
from rf.profile.environment import native_path_note
from rf.profile.tape import NativeTape, PythonTape, Recording, Slot, Tape, record

torch = pytest.importorskip("torch")


@pytest.fixture
def backend() -> Backend:
    return get_backend("torch")


class Model:
    """A small step: {B,T,F} -> scalar, with broadcasting, masks, a scalar operand and every kind of reduction over
    them.
    """

    def __init__(self) -> None:
        self.batch, self.feature, self.out = rf.Dim(2, name="B"), rf.Dim(4, name="F"), rf.Dim(5, name="G")
        self.time = rf.Dim(None, name="T", dyn_size_ext=rf.Tensor("lengths", [self.batch], "int32"))
        self.weight = torch.nn.Parameter(torch.randn(4, 5))
        self.bias = torch.nn.Parameter(torch.randn(5))
        self.x = np.random.default_rng(1).standard_normal((2, 3, 4)).astype("float32")

    def loss(self) -> rf.Tensor:
        self.time.fill([3, 2], [self.batch])
        x = rf.convert_to_tensor(self.x, dims=[self.batch, self.time, self.feature], _backend="torch")
        weight = rf.convert_to_tensor(self.weight, dims=[self.feature, self.out])
        bias = rf.convert_to_tensor(self.bias, dims=[self.out])
        y = rf.tanh(rf.matmul(x, weight, reduce=self.feature) + bias)
        y = rf.softmax(y * 2.0, axis=self.time)
        return rf.reduce_sum(y * y, axis=[self.batch, self.time, self.out])

    def gradients(self, loss: Any) -> list[Any]:
        return list(torch.autograd.grad(loss, [self.weight, self.bias]))


def record_loss(model: Model, backend: Backend) -> tuple[rf.Tensor, Tape]:
    with use_backend("torch"), record(backend) as recording:
        loss = model.loss()
    return loss, recording.tape(loss)


def python_tape(recording: Recording, loss: Any) -> PythonTape:
    """The tape of kernels that a test has called itself."""
    name = recording.backend.name
    tape = recording.tape(rf.convert_to_tensor(loss, dims=[rf.Dim(n) for n in loss.shape], _backend=name))
    assert isinstance(tape, PythonTape)
    return tape


def snapshot(backend: Backend) -> tuple[dict[str, Any], dict[str, Any]]:
    return dict(backend.kernels), dict(vars(backend))


def test_replay_gives_the_same_loss_and_gradients(backend: Backend) -> None:
    model = Model()
    loss, tape = record_loss(model, backend)
    want = model.gradients(loss.raw_tensor)
    assert all(g.abs().max() > 0 for g in want)
    assert isinstance(tape, NativeTape if native_path_note(backend)[0] else PythonTape)
    for _ in range(2):
        replayed = tape.replay()
        assert replayed is not loss.raw_tensor
        torch.testing.assert_close(replayed, loss.raw_tensor, rtol=0, atol=0)
        torch.testing.assert_close(model.gradients(replayed), want, rtol=0, atol=0)


def test_replay_follows_its_leaves(backend: Backend) -> None:
    model = Model()
    loss, tape = record_loss(model, backend)
    with torch.no_grad():
        model.weight.mul_(0.5)
    replayed = tape.replay()
    assert not torch.equal(replayed, loss.raw_tensor)
    with use_backend("torch"):
        again = model.loss()
    torch.testing.assert_close(replayed, again.raw_tensor, rtol=0, atol=0)


def test_replay_makes_the_graph_of_the_step(backend: Backend) -> None:
    def nodes(tensor: Any) -> list[str]:
        found, queue, seen = [], [tensor.grad_fn], set()
        while queue:
            node = queue.pop(0)
            if node is None or node in seen:
                continue
            seen.add(node)
            found.append(node.name())
            queue += [following for following, _ in node.next_functions]
        return found

    loss, tape = record_loss(Model(), backend)
    assert nodes(tape.replay()) == nodes(loss.raw_tensor)


def test_two_recordings_have_the_same_calls(backend: Backend) -> None:
    model = Model()
    _, first = record_loss(model, backend)
    _, second = record_loss(model, backend)
    kernels = [call.kernel for call in first.calls]
    assert kernels == [call.kernel for call in second.calls]
    assert {"from_numpy", "tanh", "add", "mul", "sum"} <= set(kernels)
    # linked alike, too
    assert [(call.args, call.outputs) for call in first.calls if call.kernel != "from_numpy"] == [
        (call.args, call.outputs) for call in second.calls if call.kernel != "from_numpy"
    ]
    assert all(call.ns > 0 for call in first.calls)


def test_timed_replay_has_a_time_for_each_call(backend: Backend) -> None:
    _, tape = record_loss(Model(), backend)
    for _ in range(2):
        ns = tape.time_kernels()
        assert len(ns) == len(tape.calls) > 0
        assert all(n > 0 for n in ns)
    assert tape.replay() is not None


def test_python_replay_lets_go_of_arrays() -> None:
    backend = get_backend("numpy")
    dim = rf.Dim(3, name="A")
    x = rf.convert_to_tensor(np.arange(3, dtype="float32"), dims=[dim], _backend="numpy")
    with record(backend) as recording:
        y = rf.exp(x)
        loss = rf.reduce_sum(y * y + x, axis=dim)
    tape = recording.tape(loss)
    assert isinstance(tape, PythonTape)
    for timed in False, True:
        lines = [line.strip() for line in tape.source(timed).splitlines()]
        made = {line.split(" = ")[0] for line in lines if line.startswith("x")}
        deleted = [name for line in lines if line.startswith("del ") for name in line[4:].split(", ")]
        (returned,) = [line.removeprefix("return ") for line in lines if line.startswith("return ")]
        assert len(made) == 4
        assert len(deleted) == len(set(deleted))
        assert made == {*deleted, returned}


# -- restoring


def test_everything_is_as_before_afterwards(backend: Backend) -> None:
    model = Model()
    with use_backend("torch"):
        model.loss()
    backend.kernels["add"]
    before = snapshot(backend)
    with use_backend("torch"), record(backend):
        assert backend.kernels["add"] is not before[0]["add"]
        model.loss()
    after = snapshot(backend)
    assert before == after
    assert all(before[0][name] is after[0][name] for name in before[0])


def test_everything_is_as_before_after_an_exception(backend: Backend) -> None:
    backend.kernels["add"]
    before = snapshot(backend)
    with pytest.raises(ZeroDivisionError), record(backend):
        raise ZeroDivisionError
    assert snapshot(backend) == before
    with record(backend):  # and it can be recorded again
        pass
    assert snapshot(backend) == before


def test_kernel_bound_while_recording_is_recorded_and_stays_as_itself(backend: Backend) -> None:
    backend.kernels.pop("tanh", None)
    x = torch.ones(2)
    with record(backend) as recording:
        y = backend.kernels["tanh"](x)
    assert len(recording) == 1
    backend.kernels["tanh"](x)
    assert len(recording) == 1
    assert [call.kernel for call in python_tape(recording, y).calls] == ["tanh"]


def test_failing_kernel_is_not_recorded_and_raises(backend: Backend) -> None:
    x = torch.ones(2)
    with record(backend) as recording:
        with pytest.raises(TypeError):
            backend.kernels["tanh"]("no array")
        y = backend.kernels["tanh"](x)
    assert [call.kernel for call in python_tape(recording, y).calls] == ["tanh"]


def test_nested_recording_is_an_error_that_ends_nothing(backend: Backend) -> None:
    x = torch.ones(2)
    with record(backend) as recording:
        with pytest.raises(rf.RfError, match="cannot be nested"), record(backend):
            pass
        y = backend.kernels["tanh"](x)
    assert len(recording) == 1
    assert len(python_tape(recording, y).calls) == 1


def test_two_backends_can_be_recorded_at_once(backend: Backend) -> None:
    numpy_backend = get_backend("numpy")
    with record(backend) as ours, record(numpy_backend) as theirs:
        backend.kernels["tanh"](torch.ones(2))
        numpy_backend.kernels["exp"](np.ones(2))
    assert (len(ours), len(theirs)) == (1, 1)


def test_backend_that_computes_nothing_cannot_be_recorded() -> None:
    with pytest.raises(rf.BackendError, match="meta"), record(get_backend("meta")):
        pass


# -- what is recorded


def test_loss_must_be_recorded(backend: Backend) -> None:
    x = torch.ones(2)
    with record(backend) as recording:
        backend.kernels["tanh"](x)
    with pytest.raises(rf.RfError, match="1 recorded kernel calls"):
        python_tape(recording, x)


def test_no_grad_is_replayed(backend: Backend) -> None:
    w = torch.ones(2, requires_grad=True)
    with record(backend) as recording:
        y = backend.kernels["exp"](w)
        with backend.no_grad():
            constant = backend.kernels["tanh"](y)
        loss = backend.kernels["sum"](backend.kernels["mul"](y, constant), (0,))
    tape = python_tape(recording, loss)
    assert [call.grad for call in tape.calls] == [True, False, True, True]
    (want,) = torch.autograd.grad(loss, [w])
    with torch.no_grad():  # whatever holds around it
        replayed = tape.replay()
        assert not torch.is_grad_enabled()
    (have,) = torch.autograd.grad(replayed, [w])
    assert torch.equal(have, want)
    assert torch.is_grad_enabled()


def test_results_in_tuples_and_arguments_that_are_none(backend: Backend) -> None:
    x, w = torch.ones(2, 4), torch.ones(4, 3, requires_grad=True)
    with record(backend) as recording:
        y = backend.kernels["linear"](x, w, None)
        left, right = backend.kernels["split"](y, 1, (1, 2))
        loss = backend.kernels["sum"](backend.kernels["concat"](right, left, 1), (0, 1))
    tape = python_tape(recording, loss)
    linear, split, concat, _ = tape.calls
    assert linear.args[2] is None
    assert linear.inputs == (linear.args[0].number, linear.args[1].number)
    assert (len(linear.outputs), len(split.outputs)) == (1, 2)
    assert concat.args == (Slot(split.outputs[1]), Slot(split.outputs[0]), 1)
    assert torch.equal(tape.replay(), loss)


def test_result_that_is_not_used_and_argument_that_is_handed_through(backend: Backend) -> None:
    x = torch.ones(2, requires_grad=True)
    with record(backend) as recording:
        backend.kernels["exp"](x)
        same = backend.kernels["identity"](x)
        loss = backend.kernels["sum"](backend.kernels["mul"](same, x), (0,))
    assert same is x
    replayed = python_tape(recording, loss).replay()
    assert torch.equal(torch.autograd.grad(replayed, [x])[0], torch.full((2,), 2.0))


def test_kernel_that_calls_kernels_is_one_call() -> None:
    backend = get_backend("numpy")
    x = np.ones(2, "float32")
    backend.kernels["twice"] = lambda x: backend.kernels["add"](x, x)
    try:
        with record(backend) as recording:
            y = backend.kernels["twice"](x)
        assert [call.kernel for call in python_tape(recording, y).calls] == ["twice"]
    finally:
        del backend.kernels["twice"]


def test_other_threads_are_not_recorded(backend: Backend) -> None:
    x = torch.ones(2)
    with record(backend) as recording:
        thread = threading.Thread(target=lambda: backend.kernels["tanh"](x))
        thread.start()
        thread.join()
    assert len(recording) == 0


def test_native_tape_says_when_a_parameter_has_another_array(backend: Backend) -> None:
    if not native_path_note(backend)[0]:
        pytest.skip("needs the native path")
    dim = rf.Dim(3, name="A")
    with use_backend("torch"):
        parameter = rf.Parameter([dim])
        with record(backend, [parameter]) as recording:
            loss = rf.reduce_sum(rf.exp(parameter), axis=dim)
        tape = recording.tape(loss)
        assert isinstance(tape, NativeTape)
        parameter.assign(1.0)
        tape.rebind()
        assert tape.replay().item() == pytest.approx(3 * np.e)
        parameter.to(dtype="float64")
    with pytest.raises(rf.RfError, match="has another array than when it was recorded"):
        tape.rebind()


# -- TensorFlow: gradients need a recording, and an update gives a parameter another array


class TfModel:
    """A step like that of `Model` on rf parameters, part of it without gradients."""

    def __init__(self) -> None:
        self.batch, self.feature, self.out = rf.Dim(2, name="B"), rf.Dim(4, name="F"), rf.Dim(5, name="G")
        self.time = rf.Dim(None, name="T", dyn_size_ext=rf.Tensor("lengths", [self.batch], "int32"))
        self.backend = get_backend("tensorflow")
        random = np.random.default_rng(1)
        self.x = random.standard_normal((2, 3, 4)).astype("float32")
        with use_backend("tensorflow"):
            self.weight, self.bias = rf.Parameter([self.feature, self.out]), rf.Parameter([self.out])
            self.weight.assign(random.standard_normal((4, 5)).astype("float32"))
        self.parameters = [self.weight, self.bias]

    def loss(self) -> rf.Tensor:
        self.time.fill([3, 2], [self.batch])
        x = rf.convert_to_tensor(self.x, dims=[self.batch, self.time, self.feature])
        y = rf.tanh(rf.matmul(x, self.weight, reduce=self.feature) + self.bias)
        with rf.stop_gradient_scope():
            constant = rf.softmax(y * 2.0, axis=self.time)
        return rf.reduce_sum(y * constant, axis=[self.batch, self.time, self.out])

    def step(self, loss: Any) -> tuple[Any, list[Any]]:
        """The loss, calculated by `loss()` in a recording, and its gradients."""
        with use_backend("tensorflow"), self.backend.recording():
            raw = loss()
            raw = raw.raw_tensor if isinstance(raw, rf.Tensor) else raw
            gradients = self.backend.gradient(raw, [p.raw_tensor for p in self.parameters])
        return raw.numpy(), [g.numpy() for g in gradients if g is not None]

    def record(self, parameters: Any) -> Tape:
        with use_backend("tensorflow"), record(self.backend, parameters) as recording:
            loss = self.loss()
        return recording.tape(loss)


@pytest.mark.needs("tensorflow")
def test_tensorflow_replay_follows_the_parameters() -> None:
    model = TfModel()
    tape = model.record(model.parameters)
    assert isinstance(tape, PythonTape)
    before = model.step(tape.replay)
    model.weight.assign(model.weight.numpy() * 0.5)
    want = model.step(model.loss)
    assert len(want[1]) == 2
    assert want[0] != before[0]
    tape.rebind()
    for _ in range(2):
        have = model.step(tape.replay)
        np.testing.assert_array_equal(have[0], want[0])
        np.testing.assert_array_equal(have[1][0], want[1][0])
        np.testing.assert_array_equal(have[1][1], want[1][1])
    with model.backend.recording():
        ns = tape.time_kernels()
        assert len(ns) == len(tape.calls) > 5
        assert all(n > 0 for n in ns)


@pytest.mark.needs("tensorflow")
def test_tensorflow_replay_keeps_the_arrays_of_others() -> None:
    model = TfModel()
    tape = model.record([model.bias])
    before = model.step(model.loss)
    model.weight.assign(model.weight.numpy() * 0.5)
    tape.rebind()
    loss, gradients = model.step(tape.replay)
    assert loss == before[0]
    assert len(gradients) == 1  # of the weight that was recorded, nobody asks


@pytest.mark.needs("tensorflow")
def test_tensorflow_replay_without_gradients_where_the_step_had_none() -> None:
    model = TfModel()
    tape = model.record(model.parameters)
    grads = {call.kernel: call.grad for call in tape.calls}
    assert grads["tanh"] is True
    assert {call.grad for call in tape.calls if "softmax" in call.kernel} == {False}
    want, have = model.step(model.loss), model.step(tape.replay)
    for w, h in zip(want[1], have[1], strict=True):
        np.testing.assert_array_equal(h, w)

    def replay() -> Any:
        with model.backend.no_grad():  # whatever holds around it
            raw = tape.replay()
            assert not model.backend.is_grad_enabled()
        return raw

    inside = model.step(replay)
    np.testing.assert_array_equal(inside[1][0], want[1][0])
    assert model.backend.is_grad_enabled()


def test_numpy_replay() -> None:
    backend = get_backend("numpy")
    a, b = rf.Dim(2, name="A"), rf.Dim(3, name="B")
    x = rf.convert_to_tensor(np.arange(6, dtype="float32").reshape(2, 3), dims=[a, b], _backend="numpy")
    with record(backend) as recording:
        loss = rf.reduce_sum(rf.exp(x) * 2.0, axis=[a, b])
    tape = recording.tape(loss)
    np.testing.assert_array_equal(tape.replay(), loss.raw_tensor)
    assert len(tape.time_kernels()) == len(tape.calls)
