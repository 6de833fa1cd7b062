"""C83: every way of leaving gives the device back in the right order."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from accy_async.backends.vulkan import VulkanBackend
from accy_async.backends.vulkan.queue import VulkanQueue
from tests.vulkan import harness

pytestmark = pytest.mark.vulkan

GIVE_UP_S = 20.0

_OPEN = """
import gc, sys
import numpy as np
from accy_async.backends.devicegraph import GraphFill, GraphNode, GraphRequest
from accy_async.backends.vulkan import VulkanBackend
from tests.vulkan import native

backend = VulkanBackend(queues=1, validation={validation})
instance = backend._device.instance
loaded = backend.load_artifact(native.artifact("count"))
stream, event = backend.create_stream(), backend.create_event(timing=True)
buffer = backend.allocate_buffer(1 << 20)
backend.write_buffer(buffer, np.ones(1 << 18, np.uint32), stream=stream)
backend.record_event(event, stream)
out = np.zeros(1 << 18, np.uint32)
backend.read_buffer(buffer, out, stream=stream)
fill = GraphFill(buffer, b"\\1\\2\\3\\4\\5\\6\\7\\x08", 1 << 20)
graph = backend.create_graph(GraphRequest((GraphNode(fill),)))
backend.launch_graph(graph, stream)
"""
_ENDS = {
    "everything is kept beyond the end": "",
    "closed while it works": "backend.close()",
    "closed twice and used": """
backend.close(); backend.close()
from accy_async.errors import SessionClosed
for use in (lambda: backend.allocate_buffer(4), lambda: backend.launch_graph(graph)):
    try:
        use()
    except SessionClosed:
        continue
    sys.exit("not refused")
""",
    "forgotten": "del backend; gc.collect()",
    "exit in the middle": "sys.exit(0)",
}
_WATCH = """
import atexit
atexit.register(lambda: None)
_messages = instance.messages
class _Last:
    def __del__(self):
        if _messages:
            print(*_messages, file=sys.stderr)
sys.modules["zz_last"] = _Last()
"""


@pytest.mark.parametrize("end", _ENDS.values(), ids=_ENDS)
def test_interpreter_ends_well_and_validation_is_silent(end: str) -> None:
    text = _OPEN.format(validation=harness.has_validation()) + _WATCH + end
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", text],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_nothing_of_vulkan_is_loaded_before_it_is_used() -> None:
    text = "import accy_async, sys; print([m for m in sys.modules if 'vulkan' in m])"
    ended = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=True
    )
    assert ended.stdout == "[]\n"


def test_the_device_is_not_given_back_under_who_asks_what_has_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Asking takes no lock: the driver aborts where its device is gone meanwhile."""
    backend = VulkanBackend(queues=1)
    queue, ask = backend._queues[0], VulkanQueue._counter
    asks, goes_on = threading.Event(), threading.Event()

    def slowly(queue: VulkanQueue) -> int:
        asks.set()
        assert goes_on.wait(GIVE_UP_S)
        return ask(queue)

    monkeypatch.setattr(VulkanQueue, "_counter", slowly)
    asker = threading.Thread(target=queue.reached)
    asker.start()
    assert asks.wait(GIVE_UP_S)
    closer = threading.Thread(target=backend.close)
    closer.start()
    while not queue._is_given_back:
        time.sleep(0)
    assert not backend._device.is_destroyed
    goes_on.set()
    for thread in (asker, closer):
        thread.join(GIVE_UP_S)
    assert backend._device.is_destroyed
    monkeypatch.setattr(VulkanQueue, "_counter", pytest.fail)
    assert queue.reached() == queue.submitted
