"""DLPack capsules: what they say, how long what they hold lives, who consumes them."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accy_async.dtypes import DType
from accy_async.errors import ExchangeRefused
from accy_async.interop import dlpack
from accy_async.interop.dlpack import CPU, Tensor, make_capsule, take_capsule

BOTH = pytest.mark.parametrize(
    "is_versioned", [False, True], ids=["plain", "versioned"]
)


class Memory:
    """Eight f32 in host memory, and a count of how often they were let go."""

    def __init__(self) -> None:
        self.array = np.arange(8, dtype=np.float32)
        self.released = 0

    def tensor(self, **fields: object) -> Tensor:
        given: dict[str, object] = {
            "address": self.array.ctypes.data,
            "device": (CPU, 0),
            "dtype": DType.F32,
            "shape": (8,),
            **fields,
        }
        return Tensor(**given)  # type: ignore[arg-type]

    def release(self) -> None:
        self.released += 1

    def capsule(self, *, is_versioned: bool, **fields: object) -> object:
        tensor = self.tensor(**fields)
        return make_capsule(tensor, self.release, is_versioned=is_versioned)


class Shown:
    """An array with one capsule to give."""

    def __init__(self, capsule: object) -> None:
        self.capsule = capsule

    def __dlpack__(self, **_: object) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU, 0


@BOTH
@given(
    dtype=st.sampled_from(list(DType)),
    shape=st.lists(st.integers(0, 5), max_size=5).map(tuple),
    is_read_only=st.booleans(),
    address=st.integers(1, 2**40),
)
def test_what_is_said_arrives(
    is_versioned: bool,
    dtype: DType,
    shape: tuple[int, ...],
    is_read_only: bool,
    address: int,
) -> None:
    tensor = Tensor(
        address=address,
        device=(2, 3),
        dtype=dtype,
        shape=shape,
        is_read_only=is_read_only,
    )
    taken = take_capsule(
        make_capsule(tensor, lambda: None, is_versioned=is_versioned), "it"
    ).tensor
    assert (taken.address, taken.device, taken.dtype, taken.shape) == (
        address,
        (2, 3),
        dtype,
        shape,
    )
    assert taken.is_read_only == (is_versioned and is_read_only)
    strides = np.empty(shape, dtype="u1").strides
    if 0 not in shape:
        assert taken.strides == strides


@BOTH
def test_capsule_that_nobody_consumes_releases(is_versioned: bool) -> None:
    memory = Memory()
    before = dlpack.outstanding()
    capsule = memory.capsule(is_versioned=is_versioned)
    assert (memory.released, dlpack.outstanding()) == (0, before + 1)
    del capsule
    assert (memory.released, dlpack.outstanding()) == (1, before)


@BOTH
def test_capsule_may_go_while_an_error_passes(is_versioned: bool) -> None:
    memory = Memory()

    def fail() -> None:
        capsule = memory.capsule(is_versioned=is_versioned)
        raise KeyError(repr(capsule))

    with pytest.raises(KeyError, match="dltensor"):
        fail()
    gc.collect()
    assert memory.released == 1


@BOTH
def test_consumed_capsule_leaves_the_release_to_its_consumer(
    is_versioned: bool,
) -> None:
    memory = Memory()
    capsule = memory.capsule(is_versioned=is_versioned)
    taken = take_capsule(capsule, "it")
    del capsule
    gc.collect()
    assert memory.released == 0
    del taken
    assert memory.released == 1


@BOTH
def test_capsule_is_consumed_once(is_versioned: bool) -> None:
    memory = Memory()
    capsule = memory.capsule(is_versioned=is_versioned)
    taken = take_capsule(capsule, "it")
    with pytest.raises(ExchangeRefused, match="it: its DLPack capsule was consumed"):
        take_capsule(capsule, "it")
    assert "used_dltensor" in repr(capsule)
    del taken, capsule
    assert memory.released == 1


def test_numpy_consumes_plain_and_versioned() -> None:
    for is_versioned in (False, True):
        memory = Memory()
        array = np.from_dlpack(Shown(memory.capsule(is_versioned=is_versioned)))
        assert (array == memory.array).all()
        assert np.shares_memory(array, memory.array)
        view = array[2:]
        del array
        gc.collect()
        assert memory.released == 0
        del view
        assert memory.released == 1


def test_numpys_capsule_is_consumed_and_given_back() -> None:
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    gone = weakref.ref(array)
    taken = take_capsule(array.__dlpack__(), "it")
    assert taken.tensor.shape == (2, 3)
    assert taken.tensor.address == array.ctypes.data
    del array
    assert gone() is not None
    del taken
    assert gone() is None


def test_numpys_read_only_array_says_so() -> None:
    array = np.arange(6)
    array.flags.writeable = False
    try:
        capsule = array.__dlpack__(max_version=(1, 0))
    except TypeError:
        pytest.skip("this numpy speaks no DLPack 1")
    assert take_capsule(capsule, "it").tensor.is_read_only


def test_release_on_another_thread_and_within_the_collector() -> None:
    memory = Memory()
    taken = [take_capsule(memory.capsule(is_versioned=True), "it")]
    thread = threading.Thread(target=taken.clear)
    thread.start()
    thread.join()
    assert memory.released == 1

    class Circle:
        """What only the collector can find."""

        def __init__(self) -> None:
            self.me = self
            self.taken = take_capsule(memory.capsule(is_versioned=True), "it")

    Circle()
    gc.collect()
    assert memory.released == 2


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda block: ctypes.c_uint32.from_address(block), "DLPack 2.1, expected"),
    ],
)
def test_later_major_version_is_refused_and_left(
    spoil: Callable[[int], ctypes.c_uint32], message: str
) -> None:
    memory = Memory()
    capsule = memory.capsule(is_versioned=True)
    spoil(dlpack._pointer(capsule, b"dltensor_versioned")).value = 2
    with pytest.raises(ExchangeRefused, match=message):
        take_capsule(capsule, "it")
    assert memory.released == 0
    del capsule
    assert memory.released == 1


@pytest.mark.parametrize(
    ("code", "bits", "lanes", "name"),
    [
        (5, 64, 1, "complex64"),
        (2, 32, 4, "float32 x 4"),
        (3, 64, 1, "opaque64"),
        (10, 8, 1, "code 10, 8"),
    ],
)
def test_elements_without_a_counterpart_are_named(
    code: int, bits: int, lanes: int, name: str
) -> None:
    memory = Memory()
    capsule = memory.capsule(is_versioned=False)
    address = dlpack._pointer(capsule, b"dltensor") + 20
    ctypes.memmove(address, bytes([code, bits, lanes, 0]), 4)
    with pytest.raises(ExchangeRefused, match=f"it: elements of {name} have no"):
        take_capsule(capsule, "it")


def test_what_is_no_capsule_is_refused() -> None:
    for given_ in (None, 3, object(), np.zeros(3)):
        with pytest.raises(ExchangeRefused, match="expected a DLPack capsule"):
            take_capsule(given_, "it")


def test_byte_offsets_are_added() -> None:
    memory = Memory()
    capsule = memory.capsule(is_versioned=False)
    where = dlpack._pointer(capsule, b"dltensor") + 40
    ctypes.c_uint64.from_address(where).value = 12
    taken = take_capsule(capsule, "it")
    assert taken.tensor.address == memory.array.ctypes.data + 12


def test_interpreter_ends_well_while_others_have_tensors() -> None:
    """Consumers that outlive the interpreter find a tensor without a deleter."""
    script = """
import numpy as np, accy_async, sys
async def main():
    async with accy_async.open_session("cpu") as session:
        array = await session.upload(np.arange(9.0))
        sys.kept = [np.from_dlpack(array) for _ in range(5)], array.__dlpack__()
accy_async.run(main)
print(sys.kept[0][0].sum())
"""
    ended = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "36.0\n", "")
