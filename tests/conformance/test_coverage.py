"""Every planned op and every public function of rf.ops has a sample."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import rf
from conformance.cases import XFAIL, parse_gaps
from conformance.sample import BATCHED, run
from conformance.samples import SAMPLES
from rf._registry import OPS

EXEMPT_FUNCTIONS: dict[str, str] = {
    **dict.fromkeys(
        ["get_default_device", "set_default_device", "set_default_device_ctx", "get_default_dim_size_device"],
        "a setting; tested in tests/test_core_plan.py",
    ),
    **dict.fromkeys(
        [
            "set_random_seed",
            "set_random_portable",
            "get_random_state",
            "set_random_state",
            "reset_step_random_state",
            "get_static_step_based_seed",
        ],
        "state of generators; tested in tests/test_ops_random.py",
    ),
    **dict.fromkeys(
        ["gradient", "set_requires_gradient", "stop_gradient_scope"],
        "about gradients; tested in tests/test_ops_gradient.py",
    ),
    **dict.fromkeys(
        ["control_flow_ctx", "get_current_control_flow_ctx"], "without effect; tested in tests/test_core_plan.py"
    ),
    "dropout_broadcast_default": "a setting; tested in tests/test_core_plan.py",
    "convert_backend": "from one backend to another, where a sample runs on one; tested in tests/test_core_tensor.py",
}
"""Public functions that need no sample, each with the reason."""


def public_functions() -> dict[str, Callable[..., Any]]:
    """What `rf` exports from `rf.ops`, by name."""
    out = {}
    for name in dir(rf):
        value = getattr(rf, name)
        module = getattr(value, "__module__", None) or ""
        if (
            not name.startswith("_")
            and callable(value)
            and not isinstance(value, type)
            and module.startswith("rf.ops.")
        ):
            out[name] = value
    return out


def uncovered() -> dict[str, str]:
    """Public functions that have no sample yet: name -> reason."""
    path: Path = XFAIL / "uncovered.txt"
    return parse_gaps(path.read_text(encoding="utf-8"), path.name)


def test_every_public_function_has_a_sample() -> None:
    covered = {s.op for s in SAMPLES}
    functions = set(public_functions())
    assert len(functions) > 100
    missing = functions - covered - EXEMPT_FUNCTIONS.keys() - uncovered().keys()
    assert not missing, f"add a sample (tests/conformance/samples) for: {', '.join(sorted(missing))}"


def test_lists_of_exceptions_are_not_stale() -> None:
    covered = {s.op for s in SAMPLES}
    functions = set(public_functions())
    for what, names in (("EXEMPT_FUNCTIONS", EXEMPT_FUNCTIONS.keys()), ("uncovered.txt", uncovered().keys())):
        assert not names - functions, f"{what}: no public functions: {sorted(names - functions)}"
        assert not names & covered, f"{what}: these have samples now: {sorted(names & covered)}"


def test_every_planned_op_is_used_by_a_sample() -> None:
    for op in OPS.values():
        op.clear_plans()
    for sample in SAMPLES:
        run(sample, "numpy" if sample.needs_values else "meta", BATCHED)
    unused = sorted(name for name, op in OPS.items() if op.num_plans == 0)
    assert not unused, f"no sample reaches these ops: {', '.join(unused)}"
