"""``accy-async devices``: what is here, what can run, and why the rest cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from accy_async import __version__
from accy_async.backends.catalogue import BackendStatus, backend_statuses, open_backend
from accy_async.cli.drivers import cuda_findings, vulkan_findings

if TYPE_CHECKING:
    from rich.console import RenderableType

    from accy_async.backends.capabilities import Capabilities

__all__ = [
    "DeviceRow",
    "device_rows",
    "devices_document",
    "show",
]

_FINDINGS = {"cuda": cuda_findings, "vulkan": vulkan_findings}
"""What is told of the drivers of a backend that cannot run."""


@attrs.frozen(kw_only=True)
class DeviceRow:
    """One line of the report.

    Attributes:
        backend: what ``--backend`` calls it.
        is_available: True where a session can be opened on it.
        is_device: False for the one that executes nothing.
        reason: why it cannot run, or what it is for.
        found: what is installed for it.
        capabilities: what it can do; None if it cannot run.
        is_for_auto: False where ``auto`` does not take it.
    """

    backend: str
    is_available: bool
    is_device: bool = True
    reason: str = ""
    found: tuple[str, ...] = ()
    capabilities: Capabilities | None = None
    is_for_auto: bool = True


def device_rows() -> list[DeviceRow]:
    """Every backend there is, the best first."""
    rows = [_row(status) for status in backend_statuses()]
    recording = open_backend("recording")
    rows.append(
        DeviceRow(
            backend="recording",
            is_available=True,
            is_device=False,
            reason="for tests: records every call, executes nothing",
            capabilities=recording.capabilities,
        )
    )
    recording.close()
    return rows


def _row(status: BackendStatus) -> DeviceRow:
    findings = None if status.is_available else _FINDINGS.get(status.name)
    reason = status.reason
    if status.is_available and not status.is_for_auto:
        reason = f"a software device: auto passes it over, --backend {status.name} not"
    return DeviceRow(
        backend=status.name,
        is_available=status.is_available,
        reason=reason,
        found=() if findings is None else findings(),
        capabilities=status.capabilities,
        is_for_auto=status.is_for_auto,
    )


def devices_document(rows: list[DeviceRow]) -> dict[str, object]:
    """The report for ``--json``."""
    candidates = (r for r in rows if r.is_available and r.is_device and r.is_for_auto)
    chosen = next((row.backend for row in candidates), None)
    return {
        "version": __version__,
        "auto": chosen,
        "backends": [
            {
                "backend": row.backend,
                "is_available": row.is_available,
                "is_device": row.is_device,
                "reason": row.reason,
                "found": list(row.found),
                "device": None
                if row.capabilities is None
                else capabilities_document(row.capabilities),
            }
            for row in rows
        ],
    }


def capabilities_document(capabilities: Capabilities) -> dict[str, object]:
    """A device for ``--json``."""
    identity = capabilities.identity
    return {
        "name": identity.name,
        "vendor": identity.vendor,
        "architecture": identity.architecture,
        "compute_units": identity.compute_units,
        "memory_bytes": identity.memory_bytes,
        "driver": identity.driver,
        "fingerprint": f"{capabilities.fingerprint:016x}",
        "formats": sorted(str(format) for format in capabilities.formats),
        "dtypes": sorted(str(dtype) for dtype in capabilities.dtypes),
        "max_threads_per_block": capabilities.max_threads_per_block,
        "max_grid": list(capabilities.max_grid),
        "max_shared_memory_bytes": capabilities.max_shared_memory_bytes,
        "max_streams": capabilities.max_streams,
        "priorities": list(capabilities.priorities),
    }


def show(rows: list[DeviceRow]) -> RenderableType:
    """The report for people."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(title="Backends", title_justify="left", show_lines=True)
    for heading in ("backend", "can run", "device"):
        table.add_column(heading, vertical="top")
    for row in rows:
        mark = Text("yes", "bold green") if row.is_available else Text("no", "bold red")
        table.add_row(row.backend, mark, Text("\n".join(_lines(row))))
    chosen = devices_document(rows)["auto"]
    text = f"auto takes: {chosen}" if chosen else "auto takes: nothing can run here"
    return Group(table, Text(text))


def _lines(row: DeviceRow) -> list[str]:
    lines = []
    if row.capabilities is not None and row.is_device:
        identity = row.capabilities.identity
        memory = identity.memory_bytes / 2**30
        lines += [
            identity.name,
            f"{identity.architecture}, {identity.compute_units} "
            f"core{'s' * (identity.compute_units != 1)}"
            + (f", {memory:.1f} GiB" if memory else "")
            + (f", {identity.driver}" if identity.driver else ""),
            "loads " + ", ".join(sorted(map(str, row.capabilities.formats))),
            f"up to {row.capabilities.max_streams} streams, priorities "
            f"{row.capabilities.priorities[0]} to {row.capabilities.priorities[1]}",
        ]
    if row.reason:
        lines.append(row.reason)
    lines += row.found
    return lines
