"""`rf bench core` and the budget of instructions: rows work, counts repeat, and the gate decides as it says."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import rf
from rf.backend import get_backend, use_backend
from rf.bench import _core_worker, budget, core, instructions
from rf.bench.core_cases import CASES, CoreCase, select_cases
from rf.cli import main
from rf.profile.environment import environment
from rf.profile.ops import World

ROOT = Path(__file__).resolve().parents[1]
BY_NAME = {case.name: case for case in CASES}
OTHERS = [name for name in ("numpy", "torch") if importlib.util.find_spec(name) is not None]


def name_of(case: CoreCase) -> str:
    return case.name


# -- the rows


@pytest.mark.parametrize("case", CASES, ids=name_of)
@pytest.mark.parametrize("backend", ["meta", *OTHERS])
def test_rows_can_be_repeated(case: CoreCase, backend: str) -> None:
    own = get_backend(backend if case.data else "meta")
    with use_backend(own.name):
        function = case.build(World(own))
        first, second = function(), function()
    assert type(first) is type(second)
    if isinstance(first, rf.Tensor):
        assert [d.get_dim_value() for d in first.dims if d.is_dim_known()] == [
            d.get_dim_value() for d in second.dims if d.is_dim_known()
        ]
        assert first.backend is second.backend


def test_what_rows_are_about() -> None:
    assert len(BY_NAME) == len(CASES)
    with use_backend("numpy"):
        world = World(get_backend("numpy"))

        def call(name: str) -> Any:
            return BY_NAME[name].build(world)()

        known = BY_NAME["T + 1, known"].build(world)
        assert known() is known()
        assert call("T + 1, sizes") == 4
        assert [d.name for d in call("copy_compatible_to_dims").dims] == ["B", "T:1", "F"]
        assert call("copy_compatible_to_dims_raw").shape == (2, 1, 4)
        assert call("Tensor, array").dims == (world.batch, world.time, world.feature)
        assert call("mask, cached").dims == (world.batch, world.time)
        assert call("Dim ==, same") is True
        assert call("Dim ==, other") is False


def test_a_new_plan_is_made_and_a_known_one_is_found() -> None:
    from rf._registry import OPS

    op = OPS["add"]
    made = []
    with use_backend("meta"):
        world = World(get_backend("meta"))
        for name in ("plan, new", "plan, found"):
            function = BY_NAME[name].build(world)
            function()
            before = op.num_plans
            function()
            made.append(op.num_plans == before)
    assert op.num_plans == 1
    assert made == [True, True]


@pytest.mark.needs("torch")
def test_references() -> None:
    from rf.bench._torch_core import CALLS

    assert {case.reference for case in CASES} - {None} == set(CALLS)
    for make in CALLS.values():
        make()()


def test_select_cases() -> None:
    assert select_cases(None) == CASES
    assert [case.name for case in select_cases("LAYERNORM")] == ["LayerNorm"]
    with pytest.raises(rf.UserError, match="no operation matches 'frobnicate'; there are: Tensor, template, "):
        select_cases("frobnicate")


# -- times


class Clock:
    now = 0

    def __call__(self) -> int:
        return self.now


def test_time_of_a_row() -> None:
    clock, seen = Clock(), []

    def build(world: World) -> Any:
        seen.append(world.backend.name)

        def call() -> None:
            clock.now += 40

        return call

    for data in (True, False):
        case = CoreCase("x", "y", build, data=data)
        answer = _core_worker.time_case(case, get_backend("numpy"), reference=True, rounds=1, round_ns=1, clock=clock)
        assert answer == {"rf": 40, "reference": None, "empty": 0}
    assert seen == ["numpy", "meta"]


def test_what_a_worker_answers() -> None:
    request = json.dumps({"case": "dims", "reference": False, "rounds": 1})
    first, second = _core_worker.answers("numpy", None, [request])
    assert first["environment"]["backend"] == "numpy"
    assert second["rf"] > 0
    assert second["reference"] is None
    (only,) = _core_worker.answers("torhc", None, [request])
    assert "unknown backend 'torhc'" in only["error"]


@pytest.mark.needs("native core")
def test_both_cores_are_timed() -> None:
    seen = []
    cases = select_cases("hash")
    result = core.bench_core(get_backend("numpy"), cases, rounds=1, instructions=False, progress=seen.append)
    assert seen == ["start, native core", "start, python core", *(case.name for case in cases)]
    assert {name: env["core"] for name, env in result.environments.items()} == {"native": "native", "python": "python"}
    assert result.missing == {}
    for row, case in zip(result.rows, cases):
        assert row.name == case.name
        assert list(row.ns) == ["native", "python"]
        assert row.instructions == {}
        assert row.reference_ns is None and row.ratio is None
    dim = next(row for row in result.rows if row.name == "Dim, hash")
    assert dim.ns["native"] < dim.ns["python"]


def test_a_process_that_dies_is_an_error() -> None:
    with core._Worker("python", "numpy", None) as worker:
        assert worker.environment["core"] == "python"
        with pytest.raises(rf.RfError, match="the process on the python core ended with status 1"):
            worker.ask({"case": "no such row", "reference": False, "rounds": 1})


def test_an_error_of_a_process_is_ours() -> None:
    with (
        pytest.raises(rf.UserError, match="python core: --threads 7: backend numpy keeps the number"),
        core._Worker("python", "numpy", 7),
    ):
        pass


def rows() -> core.CoreTimes:
    both = {"native": 80.0, "python": 800.0}
    return core.CoreTimes(
        [
            core.CoreTime("copy", "a.copy()", both, {"native": 3924.5}, "torch", "meta", "x.detach()", 160.0, 20.0),
            core.CoreTime("dims", "a.dims", both, {"native": 638.0}, "torch", "meta", None, None, 20.0),
        ],
        {"native": environment(get_backend("numpy")), "python": environment(get_backend("numpy"))},
        {"instructions": "not on this core"},
    )


def test_json() -> None:
    data = json.loads(json.dumps(core.core_json(rows()), allow_nan=False))
    first, second = data["rows"]
    assert (first["ns"], first["instructions"]) == ({"native": 80, "python": 800}, {"native": 3924.5})
    assert (first["reference"], first["reference_ns"], first["ratio"]) == ("x.detach()", 160, 0.5)
    assert second["ratio"] is None
    assert data["missing"] == {"instructions": "not on this core"}
    assert data["environment"] == data["environments"]["native"]


def test_printed(capsys: pytest.CaptureFixture[str]) -> None:
    core.print_core(rows())
    text = capsys.readouterr().out
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if "|" in line]
    assert table[1] == ["copy", "80", "800", "160", "0.50", "3924", "a.copy()", "x.detach()"]
    assert table[2] == ["dims", "80", "800", "", "", "638", "a.dims", ""]
    assert "no instructions: not on this core" in text
    assert "threads" in text


# -- instructions


@pytest.mark.needs("valgrind", "native core")
def test_counts_repeat() -> None:
    names = ["plan, found", "Dim, hash"]
    first = instructions.count(names, "native")
    second = instructions.count(names, "native")
    assert list(first) == names
    for name in names:
        assert first[name] == pytest.approx(second[name], rel=0.01)
    assert first["plan, found"] > first["Dim, hash"] > 100


@pytest.mark.needs("valgrind")
def test_a_count_that_fails_says_why() -> None:
    with pytest.raises(rf.RfError, match="(?s)on the python core failed: valgrind ended with status 1 .*no such row"):
        instructions.count(["no such row"], "python")


def test_without_valgrind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert instructions.why_not("python") == "valgrind is not installed (Debian package valgrind)"
    with pytest.raises(rf.RfError, match="cannot be counted on the python core: valgrind is not installed"):
        instructions.count(["dims"], "python")
    assert instructions.environment()["valgrind"] == "not installed"
    result = core.bench_core(get_backend("numpy"), select_cases("a.dims_set"), rounds=1)
    assert result.missing["instructions"] == "valgrind is not installed (Debian package valgrind)"
    assert result.rows[0].instructions == {}


def test_totals() -> None:
    assert instructions.totals_of("part: 1\nsummary: 7\ntotals: 12\n\npart: 2\ntotals: 345\n") == [12, 345]


def test_environment_of_counts() -> None:
    here = instructions.environment()
    assert set(here) == {"machine", "libc", "python", "numpy", "core", "valgrind", "processor"}
    assert here == instructions.environment()
    assert "/" not in here["python"]


# -- the gate

HERE = {"python": "3.11", "core": "optimized"}
ON = {"native": {"copy": 1000.0, "dims": 500.0}, "python": {"copy": 2000.0}}


def counts(**changed: float) -> dict[str, dict[str, float]]:
    return {"native": {**ON["native"], **changed}, "python": dict(ON["python"])}


@pytest.mark.parametrize(
    ("count", "failures", "hints"), [(1000, 0, 0), (1030, 0, 0), (1031, 1, 0), (970, 0, 0), (969, 0, 1)]
)
def test_tolerance(count: float, failures: int, hints: int) -> None:
    verdict = budget.compare(counts(copy=count), ON, "renew it")
    assert (len(verdict.failures), len(verdict.hints), verdict.number) == (failures, hints, 3)


def test_what_a_verdict_says() -> None:
    failed = budget.compare(counts(copy=1100), ON, "renew it")
    assert failed.failures == [
        "'copy' on the native core: 1100 instructions per call, the budget is 1000 (+10.0%); "
        "if it has to cost that: renew it"
    ]
    hint = budget.compare(counts(dims=250), ON, "renew it")
    assert hint.hints == [
        "'dims' on the native core: 250 instructions per call, the budget is 500 (-50.0%); to keep it so: renew it"
    ]
    new = budget.compare(counts(more=7), ON, "renew it")
    assert new.failures == [
        "'more' on the native core: 7 instructions per call, and no budget; to give it one: renew it"
    ]
    gone = budget.compare({"native": ON["native"]}, ON, "renew it")
    assert gone.failures == ["'copy' on the python core: has a budget, but is not measured; to remove it: renew it"]


needs_toml = pytest.mark.skipif(sys.version_info < (3, 11), reason="budgets are read with tomllib of Python 3.11")


class Counting:
    """In place of valgrind."""

    def __init__(self, result: budget.Counts) -> None:
        self.result = result
        self.asked: list[Mapping[str, Sequence[str]]] = []

    def __call__(self, cores: Mapping[str, Sequence[str]]) -> budget.Counts:
        self.asked.append(cores)
        return self.result


def gate(path: Path, counting: Counting, *options: str, here: Mapping[str, str] = HERE) -> int:
    return budget.main([str(path), *options], counting=counting, here=lambda: here)


@needs_toml
def test_update_and_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "budget.toml"
    assert gate(path, Counting(counts(dims=500.4)), "--update") == 0
    assert budget.read(path) == budget.Budget(HERE, ON)
    assert [p.name for p in tmp_path.iterdir()] == ["budget.toml"]
    capsys.readouterr()

    counting = Counting(counts(copy=1020, dims=400))
    assert gate(path, counting) == 0
    assert counting.asked == [budget.GATED]
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("note: 'dims' on the native core: 400 ")
    assert out[1:] == ["instruction counts: 3 operations, none more than 3% above its budget"]

    assert gate(path, Counting(counts(copy=1040))) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("FAILED: 'copy' on the native core: 1040 instructions per call, the budget is 1000 (+4.0%)")
    assert line.endswith("budget.toml --update")

    assert gate(path, Counting(counts(copy=1040)), "--update") == 0
    assert budget.read(path).counts["native"]["copy"] == 1040


@needs_toml
def test_another_environment_is_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "budget.toml"
    budget.write(path, budget.Budget(HERE, ON))
    counting = Counting(counts(copy=9000))
    assert gate(path, counting, here={"python": "3.12", "core": "optimized"}) == 0
    assert counting.asked == []
    out = capsys.readouterr().out
    assert out.startswith("instruction counts not checked: ")
    assert "was made in another environment: python is '3.12', there '3.11'\n" in out
    assert budget.differences({"a": "1"}, {"b": "2"}) == ["a is '1', there 'unknown'", "b is 'unknown', there '2'"]


@needs_toml
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read"),
        ("[environment", "is no file of budgets"),
        ("[counts.native]\n'a' = 1", "is no file of budgets \\(KeyError: 'environment'"),
        ("environment = {}\n[counts.native]\n'a' = 'x'", "is no file of budgets"),
        ("environment = {}\n[counts.native]\n'a' = 0", "the budget of 'a' must be above 0"),
    ],
)
def test_files_that_are_no_budget(
    tmp_path: Path, text: str | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "budget.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(rf.UserError, match=message):
        budget.read(path)
    assert gate(path, Counting(counts())) == 2
    assert capsys.readouterr().err.startswith("rf.bench.budget: ")


def test_a_file_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gate(tmp_path / "no" / "budget.toml", Counting(counts()), "--update") == 2
    assert "cannot be written" in capsys.readouterr().err


@needs_toml
def test_the_budgets_of_the_project_are_those_of_its_operations() -> None:
    project = budget.read(ROOT / "tools" / "budget.toml")
    assert {name: tuple(numbers) for name, numbers in project.counts.items()} == budget.GATED
    assert set(project.environment) == set(instructions.environment())


# -- the command


@pytest.mark.needs("valgrind", "native core")
def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "core.json"
    command = ["bench", "core", "--backend", "numpy", "--filter", "hash", "--repeat", "1", "--json", str(path)]
    assert main(command) == 0
    assert "| Dim, hash " in capsys.readouterr().out
    data = json.loads(path.read_text())
    assert [row["name"] for row in data["rows"]] == [case.name for case in select_cases("hash")]
    for row in data["rows"]:
        assert set(row["ns"]) == set(row["instructions"]) == {"native", "python"}
    assert data["missing"] == {}


@pytest.mark.needs("torch", "native core")
def test_command_beside_torch(tmp_path: Path) -> None:
    path = tmp_path / "core.json"
    command = ["bench", "core", "--filter", "a.dtype", "--repeat", "1", "--no-instructions", "--json", str(path)]
    assert main(command) == 0
    (row,) = json.loads(path.read_text())["rows"]
    assert row["reference"] == "x.dtype"
    assert row["ratio"] == row["ns"]["native"] / row["reference_ns"]
    assert row["instructions"] == {}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["core", "--filter", "frobnicate"], "no operation matches 'frobnicate'"),
        (["core", "--size", "tiny"], "--size tiny: only models have sizes"),
        (["core", "--backend", "torhc"], "unknown backend 'torhc'"),
        (["ops", "--no-instructions"], "--no-instructions: only rf bench core counts instructions"),
    ],
)
def test_bad_arguments(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    if "--backend" not in arguments:
        arguments = [*arguments, "--backend", "numpy"]
    assert main(["bench", *arguments]) == 2
    assert message in capsys.readouterr().err
