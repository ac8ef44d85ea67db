"""Writing files so that a reader finds the old file or the new one, never a part."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rf._errors import UserError

__all__ = ["replacing", "write_json"]


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields a new path beside `path` to write to; when the block ends well, that file takes the place of `path`.

    The data is on the disk before the name changes hands, so a crash of the machine leaves one whole file, too. When
    the block raises, `path` is as it was, and nothing else is left behind.

    Raises UserError, which names `path`, when it cannot be written.
    """
    path = Path(path)
    # Beside it, as a rename is atomic within one file system only. The process id keeps two runs apart.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        _sync(temporary)
        os.replace(temporary, path)
        if os.name == "posix":
            _sync(path.parent)  # the new name
    except OSError as exc:
        raise UserError(f"{path}: cannot be written ({exc.strerror or exc}); nothing was changed") from exc
    finally:
        with contextlib.suppress(OSError):  # gone after the replace, or never made
            temporary.unlink()


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Writes `value` as indented JSON, by `replacing`. Raises UserError when the file cannot be written."""
    text = json.dumps(value, indent=2, allow_nan=False) + "\n"
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
