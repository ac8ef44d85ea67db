"""Module, State, containers, hooks and building from descriptions."""

from __future__ import annotations

import copy
import functools

import numpy as np
import pytest

import rf
from rf.nn.hooks import RemovableHandle

A = rf.Dim(3, name="a")
B = rf.Dim(4, name="b")


@pytest.fixture(autouse=True)
def _numpy():
    with rf.use_backend("numpy"):
        yield


class Block(rf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = rf.Linear(A, B)
        self.scale = rf.Parameter([A])
        self.second = rf.Linear(B, A, with_bias=False)
        self.number = 3
        self.listed = [rf.Parameter([A])]  # not searched

    def __call__(self, x: rf.Tensor) -> rf.Tensor:
        return self.second(self.first(x))


class Outer(rf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = rf.Sequential(Block(), Block())
        self.same = self.layers[0].first
        self.tied = self.layers[1].scale


def test_names_are_attribute_paths_breadth_first_and_tied_ones_are_listed_once() -> None:
    model = Outer()
    assert [name for name, _ in model.named_modules()] == [
        "",
        "layers",
        "same",
        "layers.0",
        "layers.1",
        "layers.0.second",
        "layers.1.first",
        "layers.1.second",
    ]
    assert [name for name, _ in model.named_parameters()] == [
        "tied",
        "same.weight",
        "same.bias",
        "layers.0.scale",
        "layers.0.second.weight",
        "layers.1.first.weight",
        "layers.1.first.bias",
        "layers.1.second.weight",
    ]
    assert [name for name, _ in model.named_parameters(recurse=False)] == ["tied"]
    assert [name for name, _ in model.named_modules(prefix="m", include_self=False)][:2] == ["m.layers", "m.same"]
    assert list(dict(model.named_children())) == ["layers", "same"]
    assert len(list(model.parameters())) == 8 and model.has_parameters
    assert not rf.Functional(rf.relu).has_parameters


def test_deep_paths_of_any_depth() -> None:
    model = Outer()
    assert model.get_deep("layers.0.first") is model.same
    assert model.get_deep("") is model
    new = rf.Parameter([A])
    model.set_deep("layers.1.second.weight", new)
    assert model.layers[1].second.weight is new
    model.set_deep("number", 5)
    assert model.get_deep("number") == 5
    with pytest.raises(rf.RfError, match=r"layers\.0 is a Block without an attribute 'third'"):
        model.get_deep("layers.0.third.weight")


def test_apply_goes_through_children_first() -> None:
    seen = []
    model = rf.Sequential(Block())
    model.apply(lambda m: seen.append(type(m).__name__))
    assert seen == ["Linear", "Linear", "Block", "Sequential"]


def test_deepcopy_is_independent_draws_anew_and_keeps_dims_and_ties() -> None:
    model = Outer()
    other = copy.deepcopy(model)
    assert [n for n, _ in other.named_parameters()] == [n for n, _ in model.named_parameters()]
    assert other.same is other.layers[0].first and other.tied is other.layers[1].scale
    weight, copied = model.same.weight, other.same.weight
    assert copied is not weight and copied.dims == weight.dims and copied.dims[0] is A
    assert not np.array_equal(copied.numpy(), weight.numpy())
    np.testing.assert_array_equal(other.same.bias.numpy(), 0)


@pytest.mark.parametrize("backend", ["numpy", "torch", "meta"])
def test_deepcopy_copies_constant_tensors(backend: str) -> None:
    with rf.use_backend(backend):
        module = rf.Functional(rf.relu, attribs={"constant": rf.ones([A]), "template": rf.Tensor("x", [A], "int32")})
        other = copy.deepcopy(module)
        assert other.constant is not module.constant and other.constant.backend is module.constant.backend
        assert other.constant.dims == (A,) and other.template.dims == (A,) and other.template.dtype == "int32"
        if backend != "meta":
            assert other.constant.raw_tensor is not module.constant.raw_tensor
            np.testing.assert_array_equal(other.constant.numpy(), 1)


def test_a_module_that_cannot_be_called_says_so() -> None:
    with pytest.raises(NotImplementedError, match="Outer cannot be called"):
        Outer()(1)


def test_default_name() -> None:
    assert rf.LayerNorm(A).get_default_name() == "layer_norm"
    assert rf.Functional(rf.relu).get_default_name() == "relu"


# -- state


class Recurrent(rf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = rf.Linear(A, B)
        self.layers = rf.ModuleList(rf.LSTM(A, B), rf.Linear(B, B), rf.LSTM(B, A))


def test_initial_state_has_the_recurrent_children_by_name() -> None:
    batch = rf.Dim(2, name="batch")
    state = Recurrent().default_initial_state(batch_dims=[batch])
    assert list(state) == ["layers"] and list(state.layers) == ["0", "2"]
    assert state.layers["2"].h.dims_set == {batch, A}
    assert len(state.flatten_tensors()) == 4
    assert Outer().default_initial_state(batch_dims=[batch]) is None


def test_state_is_a_dict_with_attributes() -> None:
    x = rf.zeros([A])
    state = rf.State(a=x, inner=rf.State(b=x))
    state.c = None
    assert state["c"] is None and state.inner.b is x
    del state.c
    assert list(state) == ["a", "inner"]
    with pytest.raises(AttributeError, match="no entry 'z'; it has: a, inner"):
        _ = state.z
    assert state.flatten_tensors() == [x] or state.flatten_tensors()[0] is x
    again = type(state)(list(state.items()))
    assert again == state and type(again) is rf.State
    assert rf.State(x).state is x
    assert rf.State({"k": 1}).k == 1
    with pytest.raises(rf.RfError, match="has a Dim"):
        rf.State(d=A).flatten_tensors()


@pytest.mark.parametrize("cls", [rf.LstmState, rf.CausalSelfAttentionState])
def test_named_states_can_be_rebuilt_from_pairs(cls: type) -> None:
    state = cls()
    assert all(v is None for v in state.values()) and state
    assert cls([("x", 1)]) == {"x": 1}


# -- containers


def test_module_list_works_like_a_list() -> None:
    def double(x: rf.Tensor) -> rf.Tensor:
        return x * 2

    layers = rf.ModuleList(rf.Linear(A, A), rf.relu)
    assert isinstance(layers[1], rf.Functional) and len(layers) == 2
    first, last = layers[0], rf.LayerNorm(A)
    assert layers.append(last) is layers
    layers.extend([double])
    assert list(dict(layers.items())) == ["0", "1", "2", "3"]
    assert layers[-2] is last and layers["0"] is first
    assert list(layers[1:3]) == [layers[1], last] and type(layers[:1]) is rf.ModuleList
    del layers[1]
    assert list(layers) == [first, last, layers[2]] and list(dict(layers.items())) == ["0", "1", "2"]
    layers[0] = last
    layers[1:] = [first, first]
    assert list(layers) == [last, first, first]
    with pytest.raises(IndexError, match="no entry 7"):
        _ = layers[7]
    with pytest.raises(TypeError, match="expected a module"):
        layers.append(3)
    named = rf.ModuleList({"a": first, 5: last})
    assert list(dict(named.items())) == ["a", "0"]
    assert list(rf.ModuleList(iter([first, last]))) == [first, last]
    assert list(rf.ModuleList(named)) == [first, last]


def test_sequential_chains_and_collects() -> None:
    linear = rf.Linear(A, A)
    x = rf.ones([A])
    collected: dict[str, rf.Tensor] = {}
    out = rf.Sequential(linear, rf.relu)(x, collected_outputs=collected)
    np.testing.assert_array_equal(out.numpy(), rf.relu(linear(x)).numpy())
    assert list(collected) == ["0", "1"] and collected["1"] is out
    np.testing.assert_array_equal(rf.sequential(x, linear, rf.relu).numpy(), out.numpy())


def test_parameter_list() -> None:
    params = rf.ParameterList(rf.Parameter([A]), rf.Parameter([B]))
    params.append(rf.Parameter([A, B])).extend([rf.Parameter([B])])
    assert [n for n, _ in params.named_parameters()] == ["0", "1", "2", "3"]
    assert [p.dims for p in params[1:3]] == [(B,), (A, B)]
    with pytest.raises(TypeError, match="expected a Parameter"):
        params.append(rf.zeros([A]))


# -- hooks


def test_hooks_replace_results_of_one_module_only() -> None:
    model, other = rf.Linear(A, B), rf.Linear(A, B)
    x = rf.ones([A])
    before = model(x).numpy()
    calls = []

    def double(module: rf.Module, args: tuple, kwargs: dict, result: rf.Tensor) -> rf.Tensor:
        calls.append((module, args, kwargs))
        return result * 2

    def plus_one(module: rf.Module, args: tuple, kwargs: dict, result: rf.Tensor) -> rf.Tensor:
        return result + 1

    first = model.register_forward_hook(double)
    second = model.register_forward_hook(plus_one, prepend=True)
    assert isinstance(first, RemovableHandle) and isinstance(model, rf.Linear)
    np.testing.assert_allclose(model(source=x).numpy(), (before + 1) * 2)
    assert calls == [(model, (), {"source": x})]
    other(x)
    assert len(calls) == 1 and type(other) is rf.Linear
    hooked = copy.deepcopy(model)
    hooked(x)
    assert len(calls) == 2 and calls[1][0] is hooked
    second.remove()
    np.testing.assert_allclose(model(x).numpy(), before * 2)
    first.remove()
    first.remove()
    assert type(model) is rf.Linear and vars(model).keys() == vars(other).keys()
    np.testing.assert_array_equal(model(x).numpy(), before)


def test_hook_on_another_method() -> None:
    model = rf.SelfAttention(A, None, key_dim_total=B, value_dim_total=B, num_heads=2)
    handle = rf.hooks.setup_post_hook_on_method(model, "forward_qkv", lambda m, a, k, r: r[0])
    both = model.register_forward_hook(lambda m, a, k, r: "called")
    assert isinstance(model.forward_qkv(rf.ones([A])), rf.Tensor)
    handle.remove()
    assert len(model.forward_qkv(rf.ones([A]))) == 3
    both.remove()
    assert type(model) is rf.SelfAttention
    with pytest.raises(rf.RfError, match="no such method"):
        rf.hooks.setup_post_hook_on_method(model, "nothing", print)


# -- building


def test_build_dict_and_back() -> None:
    d = rf.build_dict(rf.Linear, with_bias=False)
    assert d == {"class": "rf.Linear", "with_bias": False}
    linear = rf.build_from_dict(d, A, B)
    assert isinstance(linear, rf.Linear) and linear.bias is None
    assert rf.build_from_dict(rf.build_dict(rf.relu)) is rf.relu
    lower = rf.build_from_dict(rf.build_dict(rf.clip_by_value, clip_value_min=0.0))
    assert isinstance(lower, functools.partial) and lower(rf.zeros([A]) - 1.0).numpy().max() == 0
    full = {"class": "rf.encoder.conformer.ConformerConvBlock", "kernel_size": 3, "norm": rf.relu}
    assert rf.build_from_dict(full, A).out_dim is A
    from rf.encoder.conformer import ConformerEncoder

    name = rf.build_dict(ConformerEncoder)["class"]
    assert name == "rf.encoder.conformer.ConformerEncoder"


def test_build_errors() -> None:
    with pytest.raises(rf.RfError, match='has no "class"'):
        rf.build_from_dict({"with_bias": True})
    with pytest.raises(rf.RfError, match="no 'rf.Nothing'"):
        rf.build_from_dict({"class": "rf.Nothing"})
    with pytest.raises(rf.RfError, match="with_bias of rf.Linear is given in the dict and as an argument"):
        rf.build_from_dict({"class": "rf.Linear", "with_bias": True}, A, B, with_bias=False)
    with pytest.raises(rf.RfError, match="cannot be found"):
        rf.build_dict(lambda: None)
    with pytest.raises(rf.RfError, match="expected a class or a function"):
        rf.build_dict(rf.relu(rf.zeros([A])))


def test_make_module() -> None:
    assert type(rf.make_module(None, rf.LayerNorm, A)) is rf.LayerNorm
    assert rf.make_module({"class": "rf.LayerNorm", "eps": 0.5}, None, A, eps=0.1).eps == 0.5
    assert rf.make_module(rf.LayerNorm, None, A, eps=0.1, overrides={"eps": 0.2}).eps == 0.2
    prototype = rf.LayerNorm(A)
    made = rf.make_module(prototype, None, A)
    assert made is not prototype and made.scale is not prototype.scale
    with pytest.raises(TypeError, match="expected a module, a type, a dict"):
        rf.make_module(3, None)
