"""DLPack: the structures, and capsules that carry them, in ctypes.

A *capsule* owns one managed tensor until somebody consumes it. The consumer
renames it (``dltensor`` becomes ``used_dltensor``), keeps the tensor, and calls
the tensor's deleter when it needs the memory no longer: on any thread, also within
the garbage collector. A capsule that nobody consumed calls the deleter itself.
(DLPack 1.1, "C API" and "Python Specification"; its header dlpack.h.)

Both forms are spoken: the plain one of DLPack 0, and the *versioned* one of
DLPack 1, which can say that memory is read-only.
"""

from __future__ import annotations

import atexit
import ctypes
from collections.abc import Callable

import attrs

from accy_async.dtypes import DType
from accy_async.errors import ExchangeRefused

__all__ = [
    "CPU",
    "CUDA",
    "CUDA_HOST",
    "CUDA_MANAGED",
    "DEVICE_NAMES",
    "VERSION",
    "ImportedTensor",
    "Tensor",
    "make_capsule",
    "outstanding",
    "take_capsule",
]

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13
"""Device types: dlpack.h, enum DLDeviceType."""

DEVICE_NAMES = {
    CPU: "CPU",
    CUDA: "CUDA",
    CUDA_HOST: "CUDA pinned host memory",
    4: "OpenCL",
    7: "Vulkan",
    8: "Metal",
    10: "ROCm",
    CUDA_MANAGED: "CUDA managed memory",
}

VERSION = (1, 1)
"""The newest version that is written here."""

_READ_ONLY, _IS_COPIED = 1, 2
"""Flags: dlpack.h, DLPACK_FLAG_BITMASK_*."""

_MAX_DIMENSIONS = 64


class _Device(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
    )


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (
        ("tensor", _Tensor),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_Struct = _Managed | _Versioned

_CODES = {
    "i": (0, "int"), "u": (1, "uint"), "f": (2, "float"), "bf": (4, "bfloat"),
    "bool": (6, "bool"),
}  # fmt: skip
_KINDS = {
    0: "int", 1: "uint", 2: "float", 3: "opaque", 4: "bfloat", 5: "complex", 6: "bool",
}  # fmt: skip


def _data_type(dtype: DType) -> tuple[int, int]:
    """Code and bits of one of our dtypes: dlpack.h, enum DLDataTypeCode."""
    code, _ = _CODES[dtype.value.rstrip("0123456789")]
    return code, 8 * dtype.size_bytes


_DTYPES = {_data_type(dtype): dtype for dtype in DType}


@attrs.frozen(kw_only=True)
class Tensor:
    """Memory that an array lies in.

    Attributes:
        address: of the first element; 0 may stand for an empty array's.
        device: DLPack's device type and index.
        dtype: the element type.
        shape: extents, outermost first.
        strides: elements from one index to the next; None for packed C order.
        is_read_only: True where nobody may write to it.
    """

    address: int
    device: tuple[int, int]
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    is_read_only: bool = False


# Exported tensors whose deleter has not run, by their address: what keeps the
# structure in place, and what to call then.
_OUTSTANDING: dict[int, tuple[object, Callable[[], None]]] = {}


def outstanding() -> int:
    """How many exported tensors have not been given back."""
    return len(_OUTSTANDING)


def make_capsule(
    tensor: Tensor,
    release: Callable[[], None],
    *,
    is_versioned: bool,
    is_copied: bool = False,
) -> object:
    """A capsule over a tensor's memory.

    Args:
        tensor: the memory; it has to stay until ``release`` is called.
        release: called once, by the consumer's deleter or by the capsule that nobody
            consumed: on any thread, also within the garbage collector, so that it
            must take no lock and must not raise.
        is_versioned: True for the form of DLPack 1.
        is_copied: True where the memory is a copy, the consumer's own to change.
    """
    held: _Struct
    if is_versioned:
        held = _Versioned(major=VERSION[0], minor=VERSION[1])
        held.flags = _READ_ONLY * tensor.is_read_only | _IS_COPIED * is_copied
    else:
        held = _Managed()
    ndim = len(tensor.shape)
    extents = (ctypes.c_int64 * (2 * ndim or 1))(
        *tensor.shape, *(tensor.strides or _packed_strides(tensor.shape))
    )
    first = ctypes.addressof(extents)
    pointer = ctypes.POINTER(ctypes.c_int64)
    # The structure keeps the extents alive: ctypes remembers what was assigned.
    held.tensor.shape = ctypes.cast(first, pointer)
    held.tensor.strides = ctypes.cast(first + 8 * ndim, pointer)
    held.tensor.data = tensor.address or None
    held.tensor.device = _Device(*tensor.device)
    held.tensor.ndim = ndim
    held.tensor.dtype = _DataType(*_data_type(tensor.dtype), 1)
    held.deleter = _DELETER_ADDRESS
    address = ctypes.addressof(held)
    _OUTSTANDING[address] = ((held, extents), release)
    name = _NAMES[is_versioned]
    try:
        return _new(address, name, _DESTRUCTOR_ADDRESSES[is_versioned])
    except BaseException:
        _delete(address)
        raise


def _packed_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(1, extent)
    return tuple(reversed(strides))


@attrs.frozen(eq=False)
class ImportedTensor:
    """A tensor taken from a capsule.

    Attributes:
        tensor: its memory.
        keeper: keeps it alive; the producer's deleter runs when the last reference
            to this goes.
    """

    tensor: Tensor
    keeper: object


class _Keeper:
    """Calls a producer's deleter once, when nobody refers to it any more."""

    __slots__ = ("_address", "_deleter")

    def __init__(self, address: int, deleter: int | None) -> None:
        self._address = address
        self._deleter = deleter

    def __del__(self) -> None:
        if self._deleter:
            # The lock of the interpreter is let go meanwhile: it may be anybody's code.
            ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._deleter)(self._address)


def take_capsule(capsule: object, what: str) -> ImportedTensor:
    """Consume a capsule.

    Args:
        capsule: what an array's ``__dlpack__`` gave.
        what: names the array in messages.

    Raises:
        ExchangeRefused: it is no capsule of a tensor, was consumed before, is of a
            later major version, or of a dtype that has no counterpart here. Unless
            it was consumed before, the capsule is left as it was.
    """
    for is_versioned in (True, False):
        if _is_valid(capsule, _NAMES[is_versioned]):
            break
    else:
        for is_versioned in (True, False):
            if _is_valid(capsule, _USED_NAMES[is_versioned]):
                raise ExchangeRefused(f"{what}: its DLPack capsule was consumed before")
        raise ExchangeRefused(
            f"{what}: __dlpack__ gave {type(capsule).__name__}, expected a DLPack "
            "capsule"
        )
    address = _pointer(capsule, _NAMES[is_versioned])
    held: _Struct
    is_read_only = False
    if is_versioned:
        held = _Versioned.from_address(address)
        if held.major != VERSION[0]:
            raise ExchangeRefused(
                f"{what}: DLPack {held.major}.{held.minor}, expected version "
                f"{VERSION[0]}"
            )
        is_read_only = bool(held.flags & _READ_ONLY)
    else:
        held = _Managed.from_address(address)
    tensor = _read(held.tensor, is_read_only, what)
    keeper = _Keeper(address, held.deleter)
    _rename(capsule, _USED_NAMES[is_versioned])
    return ImportedTensor(tensor, keeper)


def _read(given: _Tensor, is_read_only: bool, what: str) -> Tensor:
    ndim = given.ndim
    if not 0 <= ndim <= _MAX_DIMENSIONS:
        raise ExchangeRefused(f"{what}: {ndim} dimensions")
    kind, bits, lanes = given.dtype.code, given.dtype.bits, given.dtype.lanes
    dtype = _DTYPES.get((kind, bits)) if lanes == 1 else None
    if dtype is None:
        name = f"{_KINDS.get(kind, f'code {kind}, ')}{bits}"
        raise ExchangeRefused(
            f"{what}: elements of {name}{f' x {lanes}' if lanes != 1 else ''} have no "
            "counterpart; expected one of " + ", ".join(str(d) for d in DType)
        )
    shape = tuple(given.shape[i] for i in range(ndim))
    strides = tuple(given.strides[i] for i in range(ndim)) if given.strides else None
    return Tensor(
        address=(given.data or 0) + given.byte_offset,
        device=(given.device.type, given.device.id),
        dtype=dtype,
        shape=shape,
        strides=strides,
        is_read_only=is_read_only,
    )


# Capsules through Python's own C API. Addresses, not objects, go into the calls that
# a capsule's destructor makes: its object is half gone then.

_NAMES = {False: b"dltensor", True: b"dltensor_versioned"}
_USED_NAMES = {False: b"used_dltensor", True: b"used_dltensor_versioned"}

_api = ctypes.pythonapi
_new = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
)(("PyCapsule_New", _api))
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", _api)
)
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _api)
)
_rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_SetName", _api)
)
_is_valid_at = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", _api)
)
_pointer_at = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _api)
)


def _delete(address: int) -> None:
    """The deleter of every tensor exported here."""
    found = _OUTSTANDING.pop(address, None)
    if found is not None:
        found[1]()


def _drop(capsule: int) -> None:
    """The destructor of plain capsules."""
    if _is_valid_at(capsule, b"dltensor"):
        _delete(_pointer_at(capsule, b"dltensor"))


def _drop_versioned(capsule: int) -> None:
    """The destructor of versioned capsules."""
    if _is_valid_at(capsule, b"dltensor_versioned"):
        _delete(_pointer_at(capsule, b"dltensor_versioned"))


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_delete)
_DESTRUCTOR = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_DESTRUCTORS = {False: _DESTRUCTOR(_drop), True: _DESTRUCTOR(_drop_versioned)}

_DELETER_ADDRESS = ctypes.cast(_DELETER, ctypes.c_void_p).value
_DESTRUCTOR_ADDRESSES = {
    is_versioned: ctypes.cast(destructor, ctypes.c_void_p).value
    for is_versioned, destructor in _DESTRUCTORS.items()
}


@atexit.register
def _let_go_at_exit() -> None:
    """Leave tensors that consumers still have in place, without a deleter.

    They may be deleted when there is no interpreter any more to run ours.
    """
    for kept, _ in list(_OUTSTANDING.values()):
        held, _ = kept  # type: ignore[misc]
        held.deleter = None  # type: ignore[has-type]
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


for _forever in (_DELETER, _DESTRUCTORS, _NAMES, _USED_NAMES):
    # Others hold their addresses, for longer than this module may live.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_forever))
