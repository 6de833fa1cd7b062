"""Functions of no arguments that make one call each, in machine code.

A call through the bindings converts four arguments and makes an object of the answer,
which takes some 0.3 us of the interpreter. A launch that is made again and again has
the same four each time. So it gets a *thunk*: a few instructions that load them from a
*record* in memory and jump to the callee, and that ctypes calls in a third of the time,
as there is nothing to convert. Launches, of which there are the most, take half of
that: their thunk is a builtin function of Python's, like those that are written in C.
All release the interpreter lock meanwhile: where a stream's queue is full, the driver
waits.

Thunks come by the page, with their records, and a page is never given back: what is
not needed any more is used again. No memory is writable and executable at once.

Sources: System V ABI for AMD64, 3.2.3 (arguments in rdi, rsi, rdx, rcx); Arm AAPCS64,
6.1.1 (x0 to x3; x16 is free between a caller and its callee).
"""

from __future__ import annotations

import ctypes
import struct
import sys
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

from accy_async.artifact.native.elf_model import EM_AARCH64, EM_X86_64
from accy_async.artifact.native.host import host_architecture
from accy_async.artifact.native.image import MachineImage
from accy_async.artifact.native.memory import map_image
from accy_async.errors import OutOfMemory, RuntimeUnavailable

__all__ = [
    "Record",
    "address_of",
    "make_method",
    "make_thunk",
    "python_calls",
    "thunk_code",
]

_PER_PAGE = 64

_Function = ctypes.CFUNCTYPE(ctypes.c_int)


class Record(ctypes.Structure):
    """What a thunk loads: three arguments (the fourth is 0), and the callee."""

    _fields_ = (
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
        ("third", ctypes.c_uint64),
        ("callee", ctypes.c_uint64),
    )


_X86_64 = (
    b"\xf3\x0f\x1e\xfa"  # endbr64
    b"\x48\xb8%s"  # mov rax, the record
    b"\x48\x8b\x38"  # mov rdi, [rax]
    b"\x48\x8b\x70\x08"  # mov rsi, [rax + 8]
    b"\x48\x8b\x50\x10"  # mov rdx, [rax + 16]
    b"\x31\xc9"  # xor ecx, ecx
    b"\xff\x60\x18"  # jmp [rax + 24]
)
_AARCH64 = (
    struct.pack(
        "<10I",
        0xD503245F,  # bti c
        0x58000130,  # ldr x16, the record, 36 bytes on
        0xF9400200,  # ldr x0, [x16]
        0xF9400601,  # ldr x1, [x16, 8]
        0xF9400A02,  # ldr x2, [x16, 16]
        0xD2800003,  # mov x3, 0
        0xF9400E10,  # ldr x16, [x16, 24]
        0xD61F0200,  # br x16
        0xD503201F,  # nop, twice: the record is at a multiple of eight
        0xD503201F,
    )
    + b"%s"
)
_CODE = {"x86_64": (EM_X86_64, _X86_64), "aarch64": (EM_AARCH64, _AARCH64)}
THUNK_BYTES = 48


def thunk_code(architecture: str, record: int) -> bytes:
    """The instructions of a thunk for the record at an address."""
    code = _CODE[architecture][1].replace(b"%s", struct.pack("<Q", record))
    return code.ljust(THUNK_BYTES, b"\0")


class _Pages:
    """The thunks that nobody has, of the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # The address of a thunk and its record. Taking and giving back are atomic.
        self.free: list[tuple[int, Record]] = []
        self._records: list[Any] = []

    def take(self) -> tuple[int, Record]:
        """One that is free.

        Raises:
            RuntimeUnavailable: this system cannot run them.
            OutOfMemory: there is no memory for more.
        """
        while True:
            try:
                return self.free.pop()
            except IndexError:
                with self._lock:
                    self._add_page()

    def _add_page(self) -> None:
        architecture = host_architecture()
        if not sys.platform.startswith("linux") or architecture not in _CODE:
            raise RuntimeUnavailable(f"no thunks for {sys.platform} on {architecture}")
        records = (Record * _PER_PAGE)()
        first, size = ctypes.addressof(records), ctypes.sizeof(Record)
        image = MachineImage(
            machine=_CODE[architecture][0],
            text=b"".join(
                thunk_code(architecture, first + i * size) for i in range(_PER_PAGE)
            ),
        )
        base = map_image(image)
        self._records.append(records)
        self.free += [(base + i * THUNK_BYTES, records[i]) for i in range(_PER_PAGE)]


_PAGES = _Pages()


_NO_ARGUMENTS = 4
"""METH_NOARGS (CPython, Include/methodobject.h)."""


class _Method(ctypes.Structure):
    """A ``PyMethodDef``: what a builtin function of Python is described by."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("code", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


class _Loan:
    """A thunk while a function uses it; it goes with the function."""

    __slots__ = ("_keep", "_thunk", "method")

    method: _Method

    def __init__(self, thunk: tuple[int, Record], keep: object) -> None:
        self._thunk = thunk
        self._keep = keep

    def __del__(self) -> None:
        _PAGES.free.append(self._thunk)


def address_of(driver: Any, name: str) -> int | None:  # noqa: ANN401 - untyped
    """Where a function of the driver's is; None where it does not say."""
    answer = driver.cuGetProcAddress(name.encode(), 12000, 0)
    return int(answer[1]) or None if answer[0] == 0 and len(answer) > 1 else None


@cache
def python_calls() -> tuple[int, int, int] | None:
    """Where the interpreter's functions are that a method of machine code calls.

    They let go of the interpreter lock, take it again, and make a number. None where
    Python is not CPython.
    """
    api = getattr(ctypes, "pythonapi", None)
    if api is None or sys.implementation.name != "cpython":
        return None
    first, second, third = (
        ctypes.cast(getattr(api, name), ctypes.c_void_p).value or 0
        for name in ("PyEval_SaveThread", "PyEval_RestoreThread", "PyLong_FromLong")
    )
    return first, second, third


def make_method(callee: int, first: int, keep: object) -> Callable[[], int] | None:
    """A builtin function of Python that is machine code.

    It takes no arguments, and costs half of what ctypes takes for a call.

    Args:
        callee: the address of a function that takes one argument, and returns a new
            reference to a number; it has the interpreter lock when it is called and
            when it returns.
        first: that argument.
        keep: whose memory it is the address of; kept alive with the function.

    Returns:
        None where this system cannot run thunks.
    """
    try:
        thunk = _PAGES.take()
    except (RuntimeUnavailable, OutOfMemory):
        return None
    address, record = thunk
    record.first, record.callee = first, callee
    loan = _Loan(thunk, keep)
    loan.method = _Method(name=b"launch", code=address, flags=_NO_ARGUMENTS)
    new: Any = _new_function()
    return new(ctypes.addressof(loan.method), loan, None)  # type: ignore[no-any-return]


@cache
def _new_function() -> Any:  # noqa: ANN401 - ctypes
    prototype = ctypes.PYFUNCTYPE(
        ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p
    )
    return prototype(("PyCFunction_NewEx", ctypes.pythonapi))


def make_thunk(
    callee: int, first: int, second: int, third: int, keep: object
) -> Callable[[], int] | None:
    """What calls a function with three arguments, and returns its answer.

    Args:
        callee: the address of the function; its fourth argument is 0, if it has one.
        first: what it is called with,
        second: next,
        third: and last.
        keep: whose memory they are the addresses of; kept alive with the thunk.

    Returns:
        None where this system cannot run thunks. The function has a ``record``, whose
        arguments may be changed.
    """
    try:
        thunk = _PAGES.take()
    except (RuntimeUnavailable, OutOfMemory):
        return None
    address, record = thunk
    record.first, record.second, record.third = first, second, third
    record.callee = callee
    call: Any = _Function(address)
    call.loan = _Loan(thunk, keep)
    call.record = record
    return call  # type: ignore[no-any-return]
