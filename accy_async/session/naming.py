"""Devices by their names, opened for a session."""

from __future__ import annotations

from collections.abc import Iterable

from accy_async.backends.base import DEFAULT_GRACE_S, Backend
from accy_async.backends.catalogue import gpu_names, open_backend
from accy_async.backends.cleanup import raise_together
from accy_async.backends.completion import run_abandonable
from accy_async.errors import InvalidType, InvalidValue

__all__ = ["open_device", "open_devices"]

_OPENED_AT_ONCE = frozenset({"cpu", "recording"})
_EXPECTED = "'all', or a list of names, indices of GPUs and open backends"


async def open_device(backend: str | Backend, *, debug: bool) -> Backend:
    """A backend by its name; on a thread where its driver may take its time.

    Raises:
        InvalidType: neither a name nor a backend.
        InvalidValue: no such backend; or ``debug`` for one that is open.
        BackendUnavailable: it cannot run here.

    Cancellation: what is being opened is closed when it is.
    """
    if isinstance(backend, Backend):
        if debug:
            raise InvalidValue(
                "open_session.debug", debug, "False: open the backend with debug=True"
            )
        return backend
    if not isinstance(backend, str):
        raise InvalidType("open_session.backend", backend, "a name or an open backend")
    if backend.partition(":")[0] in _OPENED_AT_ONCE:
        return open_backend(backend, grace_s=DEFAULT_GRACE_S)
    return await run_abandonable(
        lambda: open_backend(backend, grace_s=DEFAULT_GRACE_S, debug=debug),
        lambda late: late.close(),
        name=f"open {backend}",
    )


async def open_devices(
    devices: str | Iterable[str | int | Backend], *, debug: bool
) -> list[tuple[Backend, bool]]:
    """Several backends, each with whether it is the session's own.

    Raises:
        InvalidType, InvalidValue: what is given names no devices, or one twice.
        BackendUnavailable: one cannot run here.

    Cancellation: those that are open already are closed.
    """
    wanted = await _listed(devices)
    opened: list[tuple[Backend, bool]] = []
    try:
        for one in wanted:
            is_owned = not isinstance(one, Backend)
            is_debugged = debug and is_owned
            opened.append((await open_device(one, debug=is_debugged), is_owned))
            names = [backend.device for backend, _ in opened]
            if names[-1] in names[:-1]:
                raise InvalidValue(
                    "open_session.devices", names[-1], "each device once"
                )
    except BaseException as error:
        errors: list[Exception] = []
        for backend, is_owned in opened:
            if is_owned:
                try:
                    backend.close()
                except Exception as refused:  # noqa: BLE001 - raised together below
                    errors.append(refused)
        raise_together("opening devices", error, errors)
        raise
    return opened


async def _listed(
    devices: str | Iterable[str | int | Backend],
) -> list[str | Backend]:
    if devices == "all":
        return list(await run_abandonable(gpu_names, lambda _: None, name="count GPUs"))
    if isinstance(devices, (str, Backend)) or not isinstance(devices, Iterable):
        raise InvalidType("open_session.devices", devices, _EXPECTED)
    wanted: list[str | Backend] = []
    for one in devices:
        if isinstance(one, int) and not isinstance(one, bool):
            wanted.append(f"cuda:{one}")
        elif isinstance(one, (str, Backend)):
            wanted.append(one)
        else:
            raise InvalidType("open_session.devices", one, _EXPECTED)
    if not wanted:
        raise InvalidValue("open_session.devices", devices, "at least one device")
    return wanted
