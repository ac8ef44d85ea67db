"""The process that times rows of `rf bench core` on one core: ``python -m rf.bench._core_worker BACKEND THREADS``.

The core is chosen when rf is imported, so each has a process of its own. Talks to `rf.bench.core` in lines of JSON:
first writes ``{"environment": ...}``, then answers each ``{"case": name, "reference": bool, "rounds": n}`` with
``{"rf": ns, "reference": ns or null, "empty": ns}``; ``{"error": text}`` in place of any of these is its last line.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from rf._errors import RfError
from rf.backend import Backend, get_backend, use_backend
from rf.bench.core_cases import CASES, CoreCase
from rf.profile.environment import environment, threads
from rf.profile.ops import World
from rf.profile.timing import compare

__all__ = ["answers", "time_case"]


def time_case(case: CoreCase, backend: Backend, *, reference: bool, rounds: int, **timing: Any) -> dict[str, Any]:
    """Times of one row, in ns, see the module docstring.

    :param backend: of the rows that are about arrays
    :param reference: whether to time torch's call, where there is one, in turns with ours
    :param timing: further arguments of `rf.profile.timing.compare`
    """
    own = backend if case.data else get_backend("meta")
    with use_backend(own.name):
        functions = {"rf": case.build(World(own))}
        if reference and case.reference is not None:
            # Here, as it loads torch.
            from rf.bench._torch_core import CALLS

            functions["reference"] = CALLS[case.reference]()
        result = compare(functions, rounds=rounds, **timing)
    return {"rf": result.ns["rf"], "reference": result.ns.get("reference"), "empty": result.empty_ns}


def answers(backend_name: str, number_of_threads: int | None, requests: Iterable[str]) -> Iterator[dict[str, Any]]:
    """What the process writes, given what it reads."""
    by_name = {case.name: case for case in CASES}
    try:
        backend = get_backend(backend_name)
        with threads(backend, number_of_threads):
            yield {"environment": environment(backend)}
            for line in requests:
                request = json.loads(line)
                case = by_name[request["case"]]
                yield time_case(case, backend, reference=request["reference"], rounds=request["rounds"])
    except RfError as exc:
        yield {"error": str(exc)}


def main() -> int:
    """See the module docstring."""
    backend_name, number = sys.argv[1:]
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as channel:
        os.dup2(2, 1)  # what frameworks print is not for the one who reads the channel
        for answer in answers(backend_name, int(number) or None, sys.stdin):
            channel.write(json.dumps(answer) + "\n")
            channel.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
