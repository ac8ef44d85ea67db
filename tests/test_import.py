"""What importing rf loads: no framework, nothing optional, nothing from the network; and each module imports alone."""

from __future__ import annotations

import os
import subprocess
import sys

from test_layering import OPTIONAL, layer_of, module_files

NO_NETWORK = """
import sys
def hook(event, args):
    if event.startswith(("socket.connect", "socket.getaddrinfo", "socket.bind", "urllib.")):
        raise RuntimeError(f"network: {event} {args}")
sys.addaudithook(hook)
"""


def run(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in a fresh Python where every warning is an error, without settings of rf but those in `env`."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RF_") or name == "RF_CORE"}
    return subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, env=clean | env)


def test_import_loads_nothing_optional_and_no_network() -> None:
    result = run(NO_NETWORK + "import rf\nprint(*(name for name in sys.modules if '.' not in name))")
    assert result.returncode == 0, result.stderr
    loaded = set(result.stdout.split())
    assert "rf" in loaded
    assert not loaded & OPTIONAL


def test_network_hook_can_fail() -> None:
    result = run(NO_NETWORK + "import socket\nsocket.create_connection(('127.0.0.1', 9))")
    assert result.returncode == 1
    assert "RuntimeError: network: socket." in result.stderr


def test_import_works_with_bare_dependencies() -> None:
    """Where nothing optional is installed, `import rf` and the NumPy and meta backends work."""
    block = "import sys\n" + "".join(f"sys.modules[{name!r}] = None\n" for name in sorted(OPTIONAL))
    result = run(block + "import rf\nfor name in ('numpy', 'meta'):\n    rf.select_backend(name)")
    assert result.returncode == 0, result.stderr


def test_every_module_imports_alone() -> None:
    """All but the backends of frameworks and torch code to compare with import without anything optional, each in a
    process of its own."""
    modules = [module for module in module_files() if not needs_framework(module)]
    assert len(modules) > 20
    # One process that forks for each module: many times faster than to start Python for each.
    code = f"""
import importlib, os, sys, traceback
for name in {sorted(OPTIONAL)!r}:
    sys.modules[name] = None
bad = 0
for module in {modules!r}:
    pid = os.fork()
    if pid == 0:
        try:
            importlib.import_module(module)
        except BaseException:
            sys.stderr.write(f"-- import {{module}}\\n{{traceback.format_exc()}}")
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    bad += os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0
sys.exit(bool(bad))
"""
    result = run(code)
    assert result.returncode == 0, result.stderr


def needs_framework(module: str) -> bool:
    layer = layer_of(module)
    return (
        layer is not None
        and layer.name.startswith(("backend ", "bench torch", "bench keras", "bench packages"))
        and bool(layer.packages)
    )
