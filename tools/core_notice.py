"""Say which core the installed rf was built with; make runs this after an install and before tests.

Exit status 0 with the native core, 1 without: the latter prints a notice that is hard to overlook.
Reads only the note that the build left, and so works before rf itself does.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

NOTE_MODULE = Path(__file__).parents[1] / "rf" / "_native" / "__init__.py"


def main() -> int:
    spec = importlib.util.spec_from_file_location("rf_native_note", NOTE_MODULE)
    assert spec is not None and spec.loader is not None, NOTE_MODULE
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    core, detail = module.build_note()
    if core == "native":
        print(f"rf: native core ({detail})")
        return 0
    line = "=" * 100
    print(
        f"{line}\nNOTICE: the native core of rf was not built; rf runs on the Python core: same results, slower.\n"
        f"Reason: {detail}\n"
        "To have it: install a C++17 compiler and Python's headers (Debian: g++ python3-dev), `touch setup.py`, and\n"
        "the same command again. What a compiler says shows `.venv/bin/python setup.py build_ext --inplace`.\n"
        f"{line}"
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
