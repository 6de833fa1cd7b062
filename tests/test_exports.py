"""What is exported exists, and importing it costs only what it must."""

from __future__ import annotations

import importlib
import json
import pkgutil
import subprocess
import sys
from collections import Counter

import pytest

import accy_async

# Heavy, or only useful with a device or a terminal: loaded when first needed.
LAZY = ("cuda", "cyclopts", "llvmlite", "optuna", "rich", "vulkan")


def public_packages() -> list[str]:
    """Every package a caller may import from, by its dotted name."""
    found = ["accy_async"]
    for module in pkgutil.walk_packages(accy_async.__path__, "accy_async."):
        private = any(part.startswith("_") for part in module.name.split("."))
        if module.ispkg and not private:
            found.append(module.name)
    return found


@pytest.mark.parametrize("name", public_packages())
def test_package_exports_what_it_names(name: str) -> None:
    """A package has an ``__all__``; each of its names exists, and is named once."""
    package = importlib.import_module(name)
    assert hasattr(package, "__all__"), f"{name} has no __all__"
    exported = list(package.__all__)
    twice = sorted(entry for entry, times in Counter(exported).items() if times > 1)
    assert not twice, f"{name}.__all__ names {', '.join(twice)} more than once"
    absent = [entry for entry in exported if not hasattr(package, entry)]
    assert not absent, f"{name}.__all__ names {', '.join(absent)}, which are not there"


@pytest.mark.parametrize("name", public_packages())
def test_star_import_brings_exactly_the_exports(name: str) -> None:
    """``from package import *`` brings what ``__all__`` names, lazy names too."""
    namespace: dict[str, object] = {}
    exec(f"from {name} import *", namespace)  # the statement is the subject here
    namespace.pop("__builtins__", None)
    assert sorted(namespace) == sorted(importlib.import_module(name).__all__)


def test_import_loads_no_compiler_driver_or_terminal() -> None:
    """``import accy_async`` in a new process leaves the heavy packages alone."""
    program = "import accy_async, json, sys; print(json.dumps(sorted(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = {module.partition(".")[0] for module in json.loads(result.stdout)}
    assert loaded.isdisjoint(LAZY), f"loads {', '.join(sorted(loaded & set(LAZY)))}"
