"""A driver that waits for what it submits: errors show where they are made.

Submissions of the backend are asynchronous, and an error on the device is told by
whatever call comes next. With this in place of the bindings, every submission waits
for its stream, and answers with what became of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["SynchronousDriver"]

# Where each submission has its stream.
_STREAM_AT = {
    "cuMemcpyHtoDAsync": 3,
    "cuMemcpyDtoHAsync": 3,
    "cuMemcpyDtoDAsync": 3,
    "cuMemsetD8Async": 3,
    "cuMemsetD16Async": 3,
    "cuMemsetD32Async": 3,
    "cuMemsetD2D32Async": 5,
    "cuGraphLaunch": 1,
}


class SynchronousDriver:
    """The bindings, with every submission followed by a wait for its stream."""

    def __init__(self, driver: Any) -> None:  # noqa: ANN401 - bindings are untyped
        self._driver = driver
        for name, at in _STREAM_AT.items():
            setattr(self, name, self._waiting(getattr(driver, name), at))
        launch = driver.cuLaunchKernelEx

        def launch_and_wait(config: Any, *rest: Any) -> Any:  # noqa: ANN401
            answer = launch(config, *rest)
            return answer if answer[0] != 0 else self._wait(config.hStream)

        self.cuLaunchKernelEx = launch_and_wait

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._driver, name)

    def _waiting(self, submit: Callable[..., Any], at: int) -> Callable[..., Any]:
        def submit_and_wait(*arguments: Any) -> Any:  # noqa: ANN401
            answer = submit(*arguments)
            return answer if answer[0] != 0 else self._wait(arguments[at])

        return submit_and_wait

    def _wait(self, stream: Any) -> Any:  # noqa: ANN401
        return self._driver.cuStreamSynchronize(stream)
