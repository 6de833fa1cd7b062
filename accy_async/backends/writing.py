"""Writing host memory to a device from a task, without holding up its loop."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from accy_async.backends.completion import run_abandonable

if TYPE_CHECKING:
    from accy_async.backends.base import Backend
    from accy_async.backends.handles import BufferHandle, StreamHandle

__all__ = ["submit_write"]

_MOST_AT_ONCE = 1 << 20
"""Bytes that may be copied on the event loop's thread: some 100 us."""


async def submit_write(
    backend: Backend,
    handle: BufferHandle,
    data: object,
    stream: StreamHandle | None,
    *,
    name: str,
) -> None:
    """Submit a copy to the device; on a thread where that would take long.

    Args:
        backend: the device.
        handle: what is written, all of it.
        data: the bytes, or a C-contiguous array; *borrowed* as `Backend.write_buffer`
            says.
        stream: what copies; None for the default stream.
        name: of the thread.

    Raises:
        AccyError: as `Backend.write_buffer`.

    Cancellation: the copy may be submitted all the same.
    """
    write = functools.partial(backend.write_buffer, handle, data, stream=stream)
    if backend.writes_block and handle.byte_size > _MOST_AT_ONCE:
        await run_abandonable(write, lambda _: None, name=name)
    else:
        write()
