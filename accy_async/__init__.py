"""Structured concurrency for GPU and CPU kernels, on trio and asyncio alike.

async with accy_async.open_session() as session:
    source = await session.upload(values)
    ...
# left in any way: streams awaited, everything destroyed, nothing leaked
"""

# isort: off
from accy_async.cli import early as _early  # noqa: F401 - Ctrl-C while importing these
# isort: on

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as _version

from accy_async.artifact import (
    ArtifactFormat,
    DerivedLaunch,
    Fixed,
    FixedLaunch,
    KernelCallArtifact,
    KernelCallRegistry,
    RuntimeCeilDiv,
)
from accy_async.backends import (
    Backend,
    BackendKind,
    BufferAccess,
    BufferBinding,
    Capabilities,
)
from accy_async.backends.array import DeviceArray
from accy_async.backends.catalogue import backend_statuses, open_backend
from accy_async.bridges import CancelToken, lifespan, run
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import AccyError
from accy_async.session import (
    MultiSession,
    Session,
    SessionStatistics,
    open_session,
)

__all__ = [
    "AccyError",
    "ArtifactFormat",
    "Backend",
    "BackendKind",
    "BufferAccess",
    "BufferBinding",
    "CancelToken",
    "Capabilities",
    "DType",
    "DerivedLaunch",
    "DeviceArray",
    "Fixed",
    "FixedLaunch",
    "KernelCallArtifact",
    "KernelCallRegistry",
    "MultiSession",
    "RuntimeCeilDiv",
    "ScalarArgument",
    "Session",
    "SessionStatistics",
    "__version__",
    "backend_statuses",
    "lifespan",
    "open_backend",
    "open_session",
    "run",
]

try:
    __version__ = _version("accy-async")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"
