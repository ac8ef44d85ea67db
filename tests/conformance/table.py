"""The tables of docs/backends.md, made of the cases of the suites: what a cell says, the tests of `proofs` show."""

from __future__ import annotations

import inspect
import textwrap
from pathlib import Path

import conformance.test_masking
import conformance.test_ops  # noqa: F401  # making their cases fills CHECKS
from conformance.cases import BACKENDS, CHECKS, gaps
from conformance.sample import Sample
from conformance.samples import SAMPLES
from rf.backend import PRIMITIVES, Backend

PAGE = Path(__file__).resolve().parents[2] / "docs" / "backends.md"

LETTERS = {
    "V": ("result", "order"),
    "D": ("result", "order"),
    "G": ("gradient",),
    "M": ("alone", "wider", "poison", "poison-gradient", "zero"),
}
"""What a cell may say, and the checks that show it."""

SERVICES = (
    "bind_kernel missing_kernels shape_of dtype_of device_of from_numpy constant to_numpy to_device scalar item "
    "recording no_grad gradient set_requires_gradient set_random_seed get_random_state set_random_state "
    "create_parameter set_trainable assign causal_mask assert_later"
)
"""Methods of the contract that are no kernels."""


def shows(letter: str, backend: str, sample: Sample) -> bool:
    """Whether cases of `sample` show what the letter stands for."""
    if backend == "meta" and sample.needs_values:
        return False  # the case is that it raises
    values = backend != "meta" and sample.values
    return letter in "GM" or (letter == "V") == values


def proofs(op: str, backend: str) -> dict[str, list[str]]:
    """Letter -> the test cases that show it for one cell, expected failures left out; letters without any are not
    there."""
    out: dict[str, list[str]] = {}
    for letter, names in LETTERS.items():
        for check in (CHECKS[name] for name in names):
            for sample in SAMPLES:
                if sample.op == op and check.includes(backend, sample) and shows(letter, backend, sample):
                    if f"{check.name} {sample.id}" not in gaps(backend):
                        out.setdefault(letter, []).append(check.test_id(backend, sample))
    if "V" in out:  # the more, if only some samples have values that are determined
        out.pop("D", None)
    return out


def gaps_of(op: str, backend: str) -> list[str]:
    """The known gaps of one cell, each with its reason."""
    ids = {s.id for s in SAMPLES if s.op == op}
    return [f"{case}: {reason}" for case, reason in gaps(backend).items() if case.partition(" ")[2] in ids]


def cell(op: str, backend: str) -> str:
    """What the table says."""
    letters = " ".join(proofs(op, backend))
    if backend == "meta" and any(s.op == op and s.needs_values for s in SAMPLES):
        letters = f"{letters}, or raises" if letters else "raises"
    return (letters or "–") + (" *" if gaps_of(op, backend) else "")


def op_table() -> str:
    """Ops and modules times backends."""
    ops = sorted({s.op for s in SAMPLES}, key=lambda op: (op[0].isupper(), op))
    lines = ["| op | " + " | ".join(BACKENDS) + " |", "|---" * (len(BACKENDS) + 1) + "|"]
    lines += [f"| `{op}` | " + " | ".join(cell(op, b) for b in BACKENDS) + " |" for op in ops]
    known = [f"- {backend}: {gap}" for backend in BACKENDS for op in ops for gap in gaps_of(op, backend)]
    lines += ["", *(["Known gaps (\\*):", "", *known] if known else ["No gaps are known (\\* would mark them)."])]
    for backend in BACKENDS:
        lacks = {o.dtype for s in SAMPLES if backend in s.no_backend for o in s.operands}
        if lacks:
            lines.append(f"Not on {backend}: {', '.join(sorted(lacks))}.")
    return "\n".join(lines)


def kernel_lists() -> str:
    """The primitives, and the kernels that have defaults, in the order of the contract."""
    derived = [
        name
        for cls in reversed(inspect.getmro(Backend))
        for name, value in vars(cls).items()
        if cls.__module__.startswith("rf.") and inspect.isfunction(value) and not name.startswith("_")
    ]
    derived = [name for name in dict.fromkeys(derived) if name not in SERVICES.split()]
    lists = {"Primitives": PRIMITIVES, "With a default": derived}
    texts = (f"{what} ({len(names)}): {', '.join(f'`{name}`' for name in names)}." for what, names in lists.items())
    return "\n\n".join(textwrap.fill(text, 120) for text in texts)


def page(text: str) -> str:
    """The text of docs/backends.md with what is generated made anew, between the lines that mark it."""
    for name, made in (("ops", op_table()), ("kernels", kernel_lists())):
        begin, end = f"<!-- {name}: made by tools/backends_table.py -->\n", f"\n<!-- end of {name} -->"
        before, found, rest = text.partition(begin)
        _, closed, after = rest.partition(end)
        if not found or not closed:
            raise ValueError(f"{PAGE.name}: the lines {begin!r} and {end!r} are missing")
        text = before + begin + made + end + after
    return text
