"""``rf bench ops``: time each op against the backend's own call; ``rf bench models``: models against torch code (on
TensorFlow: Keras code); ``rf bench core``: what the basic operations of dims and tensors cost on both cores, in ns and
in instructions.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from typing import Any

from rf._errors import UserError
from rf._files import write_json
from rf.backend import Backend, get_backend
from rf.bench.case import SIZES
from rf.cli._arguments import check_output
from rf.profile.environment import environment, threads
from rf.profile.ops import bench_ops, select_cases
from rf.profile.report import bench_json, print_bench

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``rf bench``."""
    parser.add_argument(
        "what",
        choices=["ops", "models", "core"],
        help="ops: single ops on arrays of a few elements; models: models against torch.nn (on tensorflow: Keras); "
        "core: basic operations of dims and tensors, on both cores",
    )
    parser.add_argument("--backend", default="torch", metavar="NAME", help="backend to compare with (default: torch)")
    parser.add_argument("--filter", metavar="TEXT", help="only those whose name or description contains this")
    parser.add_argument(
        "--size", choices=[*SIZES, "all"], help="of models: tiny shows the cost of calls, realistic that of kernels"
    )
    parser.add_argument(
        "--peers",
        metavar="NAMES",
        help="of models on torch: other packages to compare with, RETURNN and i6_models, separated by commas, or none; "
        "torch.compile (takes a minute), or all (default: those that are installed)",
    )
    parser.add_argument("--repeat", type=int, default=15, metavar="N", help="rounds; results are medians (default: 15)")
    parser.add_argument(
        "--threads", type=int, metavar="N", help="threads of the backend (default: 1, or as many as it started with)"
    )
    parser.add_argument("--no-instructions", action="store_true", help="of core: only time, do not count instructions")
    parser.add_argument("--json", metavar="FILE", help="also write the results to FILE")


def run(args: argparse.Namespace) -> int:
    """Prints the table. Always 0: targets that are not reached are only marked, as times depend on the machine."""
    check_positive("--repeat", args.repeat)
    check_positive("--threads", 1 if args.threads is None else args.threads)
    check_output("--json", args.json)
    if args.what != "models" and args.size is not None:
        raise UserError(f"--size {args.size}: only models have sizes; use rf bench models")
    if args.peers is not None and (args.what != "models" or args.backend != "torch"):
        raise UserError(f"--peers {args.peers}: other packages are compared with models on torch; use rf bench models")
    if args.what != "core" and args.no_instructions:
        raise UserError("--no-instructions: only rf bench core counts instructions")
    limit_threads(args.backend, args.threads)
    backend = get_backend(args.backend)
    bench = {"ops": _ops, "models": _models, "core": _core}[args.what]
    with threads(backend, args.threads):
        results = bench(backend, args)
    if args.json:
        write_json(args.json, results)
    return 0


def _ops(backend: Backend, args: argparse.Namespace) -> dict[str, Any]:
    cases = select_cases(backend.name, args.filter)
    env = environment(backend)
    progress = _Progress(len(cases))
    rows = bench_ops(backend, cases, rounds=args.repeat, progress=lambda case: progress(case.op))
    progress.clear()
    print_bench(rows, env)
    return bench_json(rows, env)


def _models(backend: Backend, args: argparse.Namespace) -> dict[str, Any]:
    # Here, as they import all of rf's models.
    from rf.bench import models, packages, peer, report, run

    reference = peer.peer_of(backend)
    cases = models.select_cases(args.filter, backend.name)
    sizes = SIZES if args.size == "all" else (args.size or "tiny",)
    env = environment(backend)
    peers = packages.select_packages(args.peers if backend.name == "torch" else "none", [case.name for case in cases])
    progress = _Progress(len(cases) * len(sizes))
    rows = run.bench_models(backend, cases, sizes, rounds=args.repeat, packages=peers.packages, progress=progress)
    progress.clear()
    report.print_models(rows, env, peers.notes, reference=reference.name, optimizer=reference.optimizer)
    return report.models_json(rows, env, peers.notes)


def limit_threads(backend: str, number: int | None) -> None:
    """Have TensorFlow use that many threads, which it must be told before it starts; does nothing for other backends.

    :param number: None for one, if it has not started yet.

    Raises UserError when it has started with another number.
    """
    if backend != "tensorflow" or importlib.util.find_spec(backend) is None:
        return
    import tensorflow as tf

    try:
        tf.config.threading.set_intra_op_parallelism_threads(number or 1)
        tf.config.threading.set_inter_op_parallelism_threads(number or 1)
    except RuntimeError as exc:
        if number is None:
            return
        raise UserError(f"--threads {number}: TensorFlow has started already, with another number") from exc


def _core(backend: Backend, args: argparse.Namespace) -> dict[str, Any]:
    from rf.bench import core, core_cases

    cases = core_cases.select_cases(args.filter)
    counted = not args.no_instructions
    progress = _Progress(len(cases) + len(core.CORES) * (2 if counted else 1))
    result = core.bench_core(
        backend,
        cases,
        rounds=args.repeat,
        number_of_threads=args.threads,
        instructions=counted,
        progress=progress,
    )
    progress.clear()
    core.print_core(result)
    return core.core_json(result)


def check_positive(option: str, value: int) -> None:
    """Raises UserError unless the value of the option is at least 1."""
    if value < 1:
        raise UserError(f"{option} {value}: must be at least 1")


class _Progress:
    """What is being timed, on a terminal. Nothing runs in the background: that would be timed too."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._done = 0

    def __call__(self, what: str) -> None:
        self._done += 1
        self._write(f"{self._done}/{self._number} {what}")

    def clear(self) -> None:
        """Removes the line."""
        self._write("")

    def _write(self, text: str) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\033[K{text}")
            sys.stderr.flush()
