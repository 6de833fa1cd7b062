"""A CUDA driver whose calls fail on request, and that counts what it is holding."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from accy_async.backends.cuda import context
from accy_async.backends.cuda.driver import load_driver

__all__ = ["FaultyDriver", "faulty_cuda"]

_MAKE = {
    "cuDevicePrimaryCtxRetain": "context",
    "cuEventCreate": "event",
    "cuGraphCreate": "graph",
    "cuGraphInstantiate": "executable graph",
    "cuMemAllocFromPoolAsync": "memory",
    "cuMemHostAlloc": "host memory",
    "cuMemPoolCreate": "pool",
    "cuModuleLoadDataEx": "module",
    "cuStreamCreate": "stream",
    "cuStreamCreateWithPriority": "stream",
}
_DESTROY = {
    "cuDevicePrimaryCtxRelease": "context",
    "cuEventDestroy": "event",
    "cuGraphDestroy": "graph",
    "cuGraphExecDestroy": "executable graph",
    "cuMemFreeAsync": "memory",
    "cuMemFreeHost": "host memory",
    "cuMemPoolDestroy": "pool",
    "cuModuleUnload": "module",
    "cuStreamDestroy": "stream",
}
_TELLS = frozenset({"cuGetErrorName", "cuGetErrorString", "cuGetProcAddress"})
"""What fails by no fault of the device's, if at all."""


class FaultyDriver:
    """The bindings, with a fault to come.

    Launches are made through the bindings too, none by machine code.

    Attributes:
        calls: the calls so far that can fail, by name and in order.
        fault: told the number and name of each before it is made; what it returns
            is the result in its place, None to make it.
    """

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self._lock = threading.Lock()
        self._made: Counter[str] = Counter()
        self._owed: dict[tuple[str, int], tuple[Any, ...]] = {}
        self.calls: list[str] = []
        self.fault: Callable[[int, str], int | None] = lambda number, name: None

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._driver, name)
        is_call = name.startswith("cu") and name[2].isupper()
        if not is_call or name in _TELLS:
            if name == "cuGetProcAddress":
                found = self._no_address
            return found

        def call(*arguments: Any) -> Any:
            with self._lock:
                self.calls.append(name)
                code = self.fault(len(self.calls), name)
            owes = (name, int(arguments[0])) if name in _DESTROY else None
            if code is not None:
                if owes is not None:
                    self._owed[owes] = arguments
                return (self._driver.CUresult(code),)
            answer = found(*arguments)
            if answer[0] == 0:
                with self._lock:
                    self._made[_MAKE.get(name, "")] += 1
                    self._made[_DESTROY.get(name, "")] -= 1
                    if owes is not None:
                        self._owed.pop(owes, None)
            return answer

        setattr(self, name, call)  # asked for once
        return call

    def made(self) -> dict[str, int]:
        """What was made and not destroyed yet, by kind."""
        return {kind: n for kind, n in self._made.items() if kind and n}

    def settle(self) -> None:
        """Destroy what could not be."""
        for (name, _), arguments in list(self._owed.items()):
            if name == "cuMemFreeAsync":  # the pool's stream may be gone since
                arguments = (arguments[0], 0)
            answer = getattr(self, name)(*arguments)
            assert answer[0] == 0, (name, answer)
        assert not self._owed

    def _no_address(self, *arguments: Any) -> tuple[Any, ...]:
        del arguments
        return (self._driver.CUresult(500), 0, 1)


def faulty_cuda(monkeypatch: Any, driver: Any = None) -> FaultyDriver:
    """Have the backends opened from now on call such a driver.

    Args:
        monkeypatch: undoes it.
        driver: made in place of this one; the bindings', if None.
    """
    faulty = FaultyDriver(load_driver() if driver is None else driver)
    monkeypatch.setattr(context, "load_driver", lambda: faulty)
    return faulty
