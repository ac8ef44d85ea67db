"""Build of the optional native core; everything else about the package is in pyproject.toml.

The native core only makes rf faster. Where it cannot be compiled, the install succeeds without it, and the reason is
written to rf/_native/_build_note.txt, for ``rf doctor`` and ``make`` to show: pip hides what a build prints.

Environment: CXX is the compiler, RF_SANITIZE=1 builds with the address and undefined-behavior sanitizers.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CompileError, LinkError

ROOT = Path(__file__).parent.resolve()
NOTE = Path("rf", "_native", "_build_note.txt")

if os.environ.get("RF_SANITIZE", "0") not in ("0", "1"):
    sys.exit(f"RF_SANITIZE={os.environ['RF_SANITIZE']!r} is not valid, use one of: 0, 1")
SANITIZE = os.environ.get("RF_SANITIZE") == "1"

FLAGS = ["-std=c++17", "-fvisibility=hidden"]
LINK_FLAGS: list[str] = []
if SANITIZE:
    sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
    FLAGS += ["-O1", "-g", "-UNDEBUG", "-fno-omit-frame-pointer", *sanitizers]
    LINK_FLAGS += sanitizers
else:
    FLAGS += ["-O3"]


class BuildCore(build_ext):
    """Builds the native core, or notes why not."""

    def finalize_options(self) -> None:
        super().finalize_options()
        # Always compile: distutils only compares file times, and would keep what other flags or another compiler made.
        self.force = True

    def build_extensions(self) -> None:
        # Which of CC and CXX distutils takes for C++ depends on its version. Here it is CXX, to compile and to link.
        if cxx := os.environ.get("CXX"):
            for name in ("compiler_so", "compiler_so_cxx", "linker_so", "linker_so_cxx"):
                command = getattr(self.compiler, name, None)
                if command:
                    setattr(self.compiler, name, _with_program(command, shlex.split(cxx)))
        super().build_extensions()

    def build_extension(self, ext: Extension) -> None:
        try:
            super().build_extension(ext)
        except (BaseError, CompileError, LinkError, OSError) as exc:
            # What an earlier build left must not outlive the sources and the compiler that made it.
            Path(self.get_ext_fullpath(ext.name)).unlink(missing_ok=True)
            reason = self._reason(exc)
            self.warn(f"the native core was not built, rf will run on the Python core: {reason}")
            self._write_note("python", reason)
        else:
            self._write_note("native", "with sanitizers" if SANITIZE else "optimized")

    def _reason(self, exc: Exception) -> str:
        """One line: the compiler, and how it failed, without the whole command that distutils quotes."""
        command = getattr(self.compiler, "compiler_so_cxx", None) or getattr(self.compiler, "compiler_so", None) or [""]
        text = re.sub(r"[Cc]ommand '\[.*\]' ", "", " ".join(str(exc).split()))
        return f"{command[0]}: {text or type(exc).__name__}"

    def _write_note(self, core: str, detail: str) -> None:
        """First line: the core that this install has. Second line: how it was built, or why not."""
        path = Path(self.build_lib) / NOTE
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{core}\n{detail}\n", encoding="utf-8")

    def copy_extensions_to_source(self) -> None:
        """For in-place and editable builds, where rf runs from the sources."""
        for ext in self.extensions:
            if not Path(self.build_lib, self.get_ext_filename(ext.name)).exists():
                (ROOT / self.get_ext_filename(ext.name)).unlink(missing_ok=True)
        super().copy_extensions_to_source()
        shutil.copyfile(Path(self.build_lib) / NOTE, ROOT / NOTE)


def _with_program(command: list[str], program: list[str]) -> list[str]:
    """`command` with its program replaced, which may be more than one word (``ccache g++``)."""
    first_flag = next((i for i, word in enumerate(command) if word.startswith("-")), len(command))
    return [*program, *command[first_flag:]]


setup(
    ext_modules=[
        Extension(
            "rf._native._core",
            sources=["rf/_native/core.cpp"],
            depends=sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("rf/_native/*.h")),
            extra_compile_args=FLAGS,
            extra_link_args=LINK_FLAGS,
            language="c++",
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildCore},
)
