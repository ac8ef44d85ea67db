"""The native core: the extension module ``rf._native._core``, where it could be built, and what the build noted."""

from __future__ import annotations

from pathlib import Path

__all__ = ["build_note"]


def build_note() -> tuple[str, str]:
    """Outcome of building the native core when rf was installed.

    :return: (core, detail): core is ``native`` or ``python``; detail says how it was built, or why it was not.
        ``("python", "rf was not installed, so nothing was built")`` when rf runs from sources without any build.
    """
    path = Path(__file__).with_name("_build_note.txt")
    if not path.is_file():
        return "python", "rf was not installed, so nothing was built"
    core, _, detail = path.read_text(encoding="utf-8").partition("\n")
    return core, detail.strip()
