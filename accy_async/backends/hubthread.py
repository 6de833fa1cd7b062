"""The threads of a device's hub: started by the first wait that needs them.

How they end is each hub's own: CUDA's are told, and end by themselves; Vulkan's calls
the driver, and is waited for before the device goes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from accy_async.errors import RuntimeUnavailable

__all__ = ["start_hub_thread"]


def start_hub_thread(serve: Callable[[], None], name: str) -> threading.Thread:
    """Start a thread that waits for a device, and keeps no process from its end.

    Raises:
        RuntimeUnavailable: the system has none to give; the next wait may try again.
    """
    thread = threading.Thread(target=serve, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise RuntimeUnavailable(
            f"no thread to wait for the device with: {error}"
        ) from error
    return thread
