"""DLPack: its structures, and the capsules that carry them.

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
import struct
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


# The structures of dlpack.h, as `struct` has them: reading and writing them field by
# field through ctypes takes several times as long.

_TENSOR = struct.Struct("=QiiiBBHQQQ")
"""DLTensor: data, device type and id, ndim, dtype's code, bits and lanes, shape,
strides, byte offset."""

_MANAGED = struct.Struct("=QQ")
"""The rest of DLManagedTensor, behind the tensor: context, deleter."""

_VERSIONED = struct.Struct("=IIQQQ")
"""The first of DLManagedTensorVersioned, before the tensor: major and minor version,
context, deleter, flags."""

_CODES = {"i": 0, "u": 1, "f": 2, "bf": 4, "bool": 6}
_KINDS = {
    0: "int", 1: "uint", 2: "float", 3: "opaque", 4: "bfloat", 5: "complex", 6: "bool",
}  # fmt: skip


_DATA_TYPES = {
    dtype: (_CODES[dtype.value.rstrip("0123456789")], 8 * dtype.size_bytes)
    for dtype in DType
}
"""Code and bits of our dtypes: dlpack.h, enum DLDataTypeCode."""

_DTYPES = {data_type: dtype for dtype, data_type in _DATA_TYPES.items()}


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
# structure in place, where in it the deleter is, and what to call then.
_OUTSTANDING: dict[
    int, tuple[ctypes.Array[ctypes.c_char], int, Callable[[], None]]
] = {}


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
    shape = tensor.shape
    ndim = len(shape)
    strides = tensor.strides or _packed_strides(shape)
    first = _VERSIONED.size if is_versioned else 0
    extents = first + _TENSOR.size + (0 if is_versioned else _MANAGED.size)
    block = ctypes.create_string_buffer(extents + 16 * ndim)
    address = ctypes.addressof(block)
    if is_versioned:
        flags = _READ_ONLY * tensor.is_read_only | _IS_COPIED * is_copied
        _VERSIONED.pack_into(block, 0, *VERSION, 0, _DELETER_ADDRESS, flags)
        deleter = 16
    else:
        _MANAGED.pack_into(block, _TENSOR.size, 0, _DELETER_ADDRESS)
        deleter = _TENSOR.size + 8
    where = address + extents
    _TENSOR.pack_into(
        block, first, tensor.address, *tensor.device, ndim,
        *_DATA_TYPES[tensor.dtype], 1, where, where + 8 * ndim, 0,
    )  # fmt: skip
    struct.pack_into(f"={2 * ndim}q", block, extents, *shape, *strides)
    _OUTSTANDING[address] = (block, deleter, release)
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
    is_read_only = False
    if is_versioned:
        head = ctypes.string_at(address, _VERSIONED.size)
        major, minor, _, deleter, flags = _VERSIONED.unpack(head)
        if major != VERSION[0]:
            raise ExchangeRefused(
                f"{what}: DLPack {major}.{minor}, expected version {VERSION[0]}"
            )
        is_read_only = bool(flags & _READ_ONLY)
        tensor = _read(address + _VERSIONED.size, is_read_only, what)
    else:
        tail = ctypes.string_at(address + _TENSOR.size, _MANAGED.size)
        _, deleter = _MANAGED.unpack(tail)
        tensor = _read(address, is_read_only, what)
    keeper = _Keeper(address, deleter)
    _rename(capsule, _USED_NAMES[is_versioned])
    return ImportedTensor(tensor, keeper)


def _read(address: int, is_read_only: bool, what: str) -> Tensor:
    given = _TENSOR.unpack(ctypes.string_at(address, _TENSOR.size))
    data, place, index, ndim, code, bits, lanes, extents, steps, offset = given
    if not 0 <= ndim <= _MAX_DIMENSIONS:
        raise ExchangeRefused(f"{what}: {ndim} dimensions")
    dtype = _DTYPES.get((code, bits)) if lanes == 1 else None
    if dtype is None:
        name = f"{_KINDS.get(code, f'code {code}, ')}{bits}"
        raise ExchangeRefused(
            f"{what}: elements of {name}{f' x {lanes}' if lanes != 1 else ''} have no "
            "counterpart; expected one of " + ", ".join(str(d) for d in DType)
        )
    return Tensor(
        address=data + offset,
        device=(place, index),
        dtype=dtype,
        shape=_numbers(extents, ndim),
        strides=_numbers(steps, ndim) if steps else None,
        is_read_only=is_read_only,
    )


def _numbers(address: int, count: int) -> tuple[int, ...]:
    if not count:
        return ()
    return struct.unpack(f"={count}q", ctypes.string_at(address, 8 * count))


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
        found[2]()


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

_DELETER_ADDRESS = ctypes.cast(_DELETER, ctypes.c_void_p).value or 0
_DESTRUCTOR_ADDRESSES = {
    is_versioned: ctypes.cast(destructor, ctypes.c_void_p).value
    for is_versioned, destructor in _DESTRUCTORS.items()
}


@atexit.register
def _let_go_at_exit() -> None:
    """Leave tensors that consumers still have in place, without a deleter.

    They may be deleted when there is no interpreter any more to run ours.
    """
    for block, deleter, _ in list(_OUTSTANDING.values()):
        struct.pack_into("=Q", block, deleter, 0)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(block))


for _forever in (_DELETER, _DESTRUCTORS, _NAMES, _USED_NAMES):
    # Others hold their addresses, for longer than this module may live.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_forever))
