"""`rf bench models --backend tensorflow`: rf and Keras compute the same numbers, and what is measured is reported."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rf
from rf.backend import get_backend, use_backend
from rf.bench import run
from rf.bench.case import Case, Data, Reference, RfModel
from rf.bench.check import GRADIENT_TOLERANCE, build, check_forward, check_gradients
from rf.bench.models import CASES, select_cases
from rf.bench.peer import peer_of
from rf.bench.run import check_case

pytestmark = pytest.mark.needs("tensorflow")

KERAS = [case for case in CASES if case.keras is not None]


def name(case: Case) -> str:
    return case.name


@pytest.fixture(autouse=True)
def _on_tensorflow() -> Iterator[None]:
    with use_backend("tensorflow"):
        yield
    rf.reset_run_ctx()


def sides(case: Case, dropout: float = 0.0) -> tuple[RfModel, Reference]:
    return build(case, "tiny", get_backend("tensorflow"), dropout)


@pytest.mark.parametrize("case", KERAS, ids=name)
def test_same_numbers_in_double_precision(case: Case) -> None:
    import keras

    epsilon = keras.config.epsilon()
    keras.config.set_dtype_policy("float64")
    keras.config.set_epsilon(1e-30)  # Keras adds it to the number of frames of a batch norm.
    try:
        with rf.set_default_float_dtype_ctx("float64"):
            differences = check_case(get_backend("tensorflow"), case, "tiny")
    finally:
        keras.config.set_dtype_policy("float32")
        keras.config.set_epsilon(epsilon)
    assert set(differences) == set(case.steps)
    assert max(differences.values()) < 1e-10


@pytest.mark.parametrize("case", KERAS, ids=name)
def test_keras_code_that_ignores_lengths_is_noticed(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_lengths(size: Any, dropout: float) -> Reference:
        assert case.keras is not None
        with monkeypatch.context() as patch:
            patch.setattr(Data, "lengths", staticmethod(lambda batch, time: np.full(batch, time, dtype="int32")))
            return case.keras(size, dropout)

    with pytest.raises(rf.RfError, match="the result of the Keras code differs"):
        check_case(get_backend("tensorflow"), dataclasses.replace(case, keras=without_lengths), "tiny")


@pytest.mark.parametrize("case", KERAS, ids=name)
def test_another_weight_is_noticed(case: Case) -> None:
    ours, theirs = sides(case)
    weight = theirs.model.trainable_variables[-1]
    weight.assign(-weight)
    with pytest.raises(rf.RfError, match=f"^{case.name}: the result of the Keras code differs"):
        check_forward(case, get_backend("tensorflow"), ours, theirs)


@pytest.mark.parametrize("case", KERAS, ids=name)
def test_another_loss_and_another_gradient_are_noticed(case: Case) -> None:
    import tensorflow as tf

    backend = get_backend("tensorflow")
    ours, theirs = sides(case)
    assert theirs.loss is not None
    loss = theirs.loss
    assert check_gradients(case, backend, ours, theirs) < 1e-3
    with pytest.raises(rf.RfError, match="the loss of Keras differs"):
        check_gradients(case, backend, ours, dataclasses.replace(theirs, loss=lambda: loss() * 1.01))

    @tf.custom_gradient
    def with_more(x: Any) -> Any:
        return tf.identity(x), lambda g: g * (1 + 2 * GRADIENT_TOLERANCE)

    with pytest.raises(rf.RfError, match=f"^{case.name}: the gradient of .* of Keras differs"):
        check_gradients(case, backend, ours, dataclasses.replace(theirs, loss=lambda: with_more(loss())))


@pytest.mark.parametrize("case", KERAS, ids=name)
def test_other_parameters_are_noticed(case: Case) -> None:
    def with_other_names(size: Any, dropout: float) -> Reference:
        assert case.keras is not None
        theirs = case.keras(size, dropout)

        def from_rf(weights: Any) -> dict[str, Any]:
            (first, weight), *rest = theirs.from_rf(weights).items()
            return {f"{first}s": weight, **dict(rest)}

        return dataclasses.replace(theirs, from_rf=from_rf)

    with pytest.raises(rf.RfError, match=r"different parameters: Keras alone has \['.*'\], rf alone \['.*s'"):
        sides(dataclasses.replace(case, keras=with_other_names))


@pytest.mark.parametrize("case", KERAS, ids=name)
def test_dropout_is_active_in_training_only(case: Case) -> None:
    ours, theirs = sides(case, 0.1)
    assert ours.loss is not None and theirs.loss is not None
    check_forward(case, get_backend("tensorflow"), ours, theirs)
    assert ours.loss().item() != ours.loss().item()
    assert float(theirs.loss()) != float(theirs.loss())


@pytest.mark.parametrize("case", KERAS, ids=name)
def test_training_steps_train_all_parameters(case: Case) -> None:
    ours, theirs = sides(case, case.dropout)
    with use_backend("meta"):
        frontend = case.rf(get_backend("meta"), case.sizes["tiny"], case.dropout)
    calls = run._train_calls(peer_of(get_backend("tensorflow")), ours, theirs, frontend)
    assert list(calls) == ["rf", "Keras", "meta"]

    def ours_by_name() -> dict[str, np.ndarray]:
        return {name: p.numpy() for name, p in ours.model.named_parameters() if p.trainable}

    def theirs_by_name() -> dict[str, np.ndarray]:
        return {v.path: v.numpy() for v in theirs.model.trainable_variables}

    assert len(ours_by_name()) == len(theirs.model.trainable_variables)
    for parameters, call in ((ours_by_name, calls["rf"]), (theirs_by_name, calls["Keras"])):
        before = parameters()
        call()
        assert [name for name, p in parameters().items() if np.array_equal(p, before[name])] == []


def test_select_cases() -> None:
    assert select_cases(None, "tensorflow") == KERAS
    assert [case.name for case in KERAS] == ["Conformer encoder"]
    with pytest.raises(rf.UserError, match="no model matches 'resnet'; there are: Conformer encoder$"):
        select_cases("resnet", "tensorflow")


# -- the command, in a process of its own: the number of threads is set before TensorFlow starts


def bench(*arguments: str, before: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """One thread, in a process that has done `before`."""
    code = f"import sys\n{before}\nfrom rf.cli import main\nsys.exit(main(['bench', 'models', *sys.argv[1:]]))"
    command = [sys.executable, "-c", code, "--backend", "tensorflow", "--threads", "1", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"} | env
    )


def test_command(tmp_path: Path) -> None:
    path = tmp_path / "models.json"
    result = bench("--repeat", "1", "--json", str(path))
    assert result.returncode == 0, result.stderr
    assert (
        "threads 1 of" in result.stdout and "Keras" in result.stdout and "torch" not in result.stdout.split("ms per")[1]
    )
    data = json.loads(path.read_text())
    assert data["environment"]["threads"]["tensorflow"] == 1
    forward, train = data["rows"]
    assert [row["step"] for row in (forward, train)] == ["forward", "train"]
    assert forward["target"] == 0.3 and train["target"] is None
    for row in (forward, train):
        assert (row["model"], row["size"], row["reference"]) == ("Conformer encoder", "tiny", "Keras")
        assert row["ratio"] == row["rf_ms"] / row["reference_ms"]
        assert row["difference"] < 1e-3


@pytest.mark.parametrize(
    ("before", "env", "message"),
    [
        ("sys.modules['keras'] = None", {}, "pip install keras"),
        ("", {"KERAS_BACKEND": "torch"}, "set KERAS_BACKEND=tensorflow"),
        (
            "import tensorflow as tf\ntf.config.threading.set_intra_op_parallelism_threads(2)\ntf.constant(0)",
            {},
            "--threads 1: TensorFlow has started already",
        ),
    ],
)
def test_what_is_missing(before: str, env: dict[str, str], message: str) -> None:
    result = bench(before=before, **env)
    assert result.returncode == 2
    last = result.stderr.splitlines()[-1]
    assert message in last and "Traceback" not in result.stderr
