"""Devices behind one contract: what a backend is, and the handles it gives out.

The recording backend is among them; backends of real devices are imported by
name (`accy_async.backends.cpu`), so that importing this room loads no driver and
no compiler.
"""

from accy_async.artifact.formats import BackendKind
from accy_async.backends.base import DEFAULT_GRACE_S, Backend
from accy_async.backends.capabilities import Capabilities, DeviceIdentity
from accy_async.backends.completion import Completion, run_abandonable
from accy_async.backends.handles import (
    BufferAccess,
    BufferBinding,
    BufferHandle,
    BufferOwnership,
    EventHandle,
    GraphHandle,
    Handle,
    LoadedArtifact,
    ObjectKind,
    StreamHandle,
)
from accy_async.backends.launch import LaunchRequest, PreparedLaunch
from accy_async.backends.launcher import Launcher
from accy_async.backends.lifetimes import Reaper
from accy_async.backends.recording import (
    CallRecord,
    LaunchRecord,
    RecordingBackend,
    SyncScope,
)

__all__ = [
    "DEFAULT_GRACE_S",
    "Backend",
    "BackendKind",
    "BufferAccess",
    "BufferBinding",
    "BufferHandle",
    "BufferOwnership",
    "CallRecord",
    "Capabilities",
    "Completion",
    "DeviceIdentity",
    "EventHandle",
    "GraphHandle",
    "Handle",
    "LaunchRecord",
    "LaunchRequest",
    "Launcher",
    "LoadedArtifact",
    "ObjectKind",
    "PreparedLaunch",
    "Reaper",
    "RecordingBackend",
    "StreamHandle",
    "SyncScope",
    "run_abandonable",
]
