"""Devices behind one contract: what a backend is, and the handles it gives out.

The backends themselves are imported by name, so that importing this room loads
no driver and no compiler: `accy_async.backends.recording`,
`accy_async.backends.cpu`.
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
    Handle,
    LoadedArtifact,
    ObjectKind,
    StreamHandle,
)
from accy_async.backends.launch import LaunchRequest
from accy_async.backends.lifetimes import Reaper

__all__ = [
    "DEFAULT_GRACE_S",
    "Backend",
    "BackendKind",
    "BufferAccess",
    "BufferBinding",
    "BufferHandle",
    "BufferOwnership",
    "Capabilities",
    "Completion",
    "DeviceIdentity",
    "EventHandle",
    "Handle",
    "LaunchRequest",
    "LoadedArtifact",
    "ObjectKind",
    "Reaper",
    "StreamHandle",
    "run_abandonable",
]
