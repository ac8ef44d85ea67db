"""Writes the tables of docs/backends.md: which backend supports which op, as the conformance suite has cases for it.

Usage: python tools/backends_table.py
       python tools/backends_table.py OP BACKEND    prints the test cases behind one cell
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path


def main(args: list[str]) -> int:
    """0, or 1 if there is nothing behind the cell, or 2 with usage on wrong arguments."""
    root = Path(__file__).resolve().parents[1]
    sys.path[:0] = [str(root), str(root / "tests")]
    table = importlib.import_module("conformance.table")
    if len(args) == 2:
        found = table.proofs(*args)
        for letter, tests in found.items():
            print(*(f"{letter} {test}" for test in tests), sep="\n")
        return 0 if found else 1
    if args:
        print(__doc__, file=sys.stderr)
        return 2
    old = table.PAGE.read_text(encoding="utf-8")
    new = table.page(old)
    table.PAGE.write_text(new, encoding="utf-8")
    print(f"docs/backends.md: {'as it was' if new == old else 'changed'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
