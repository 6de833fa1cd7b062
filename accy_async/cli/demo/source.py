"""What the demo scans: a made-up sensor's signal, or the values of a file."""

from __future__ import annotations

import math
import os
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import attrs
import numpy as np

from accy_async.cli.exits import UsageError
from accy_async.compiler.kernels import MAX_SCAN_LENGTH
from accy_async.dtypes import DType

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["SEED", "Source", "read_source", "sensor_signal", "sensor_source"]

SEED = 20_250_101
"""Of the default signal; any would do, but it must stay the same."""

_RATE_HZ = 1000
_STEP = np.float32(1 / 128)
_DTYPES = (DType.F32, DType.I32, DType.U32)


@attrs.frozen(kw_only=True, eq=False)
class Source:
    """The values to scan.

    Attributes:
        values: one dimension of f32, i32 or u32, in memory.
        dtype: their type.
        description: where they come from, in words.
    """

    values: NDArray[Any]
    dtype: DType
    description: str

    @property
    def checksum(self) -> str:
        """CRC-32 of the bytes: tells whether two runs scanned the same."""
        return f"{zlib.crc32(self.values.view(np.uint8).data):08x}"


def sensor_source(length: int) -> Source:
    """The default signal, described."""
    return Source(
        values=sensor_signal(length),
        dtype=DType.F32,
        description="nothing to scan"
        if not length
        else (
            f"a gyroscope's rate at {_RATE_HZ} Hz: two swings, a bias that walks at "
            f"random, white noise, in steps of 1/128 deg/s (PCG64 seed {SEED}); its "
            "scan is the angle turned, in samples"
        ),
    )


def sensor_signal(length: int) -> NDArray[np.float32]:
    """A gyroscope's rate in degrees per second, as its converter delivers it.

    The same for the same length: two slow swings, a bias that takes one random
    step a second, white noise, all rounded to the converter's step.
    """
    random = np.random.default_rng(SEED)
    bias_steps = random.standard_normal(-(-length // _RATE_HZ) + 1, dtype=np.float32)
    bias = np.cumsum(bias_steps * np.float32(0.02), dtype=np.float32)
    signal = random.standard_normal(length, dtype=np.float32)
    signal *= np.float32(0.15)
    signal += np.repeat(bias, _RATE_HZ)[:length]
    # One minute and one hour of the swings, repeated: sines are the slow part.
    for seconds, degrees in ((60, 2.0), (3600, 0.5)):
        period = min(seconds * _RATE_HZ, max(length, 1))
        phase = np.arange(period, dtype=np.float64) * (2 * np.pi / seconds / _RATE_HZ)
        swing = (degrees * np.sin(phase)).astype(np.float32)
        whole = length - length % period
        signal[:whole].reshape(-1, period)[:] += swing
        signal[whole:] += swing[: length - whole]
    signal /= _STEP
    np.rint(signal, out=signal)
    signal *= _STEP
    return signal


def read_source(path: Path) -> Source:
    """The values of a ``.npy`` file.

    Nothing in the file is run (no pickles), and its size is checked against its
    header before memory is taken.

    Raises:
        UsageError: it cannot be read, is no ``.npy`` file, is truncated, or holds
            something else than one dimension of f32, i32 or u32.
    """
    where = f"--input {path}"
    if not path.is_file():
        what = "is no file" if path.exists() else "does not exist"
        raise UsageError(f"{where}: it {what}")
    try:
        with path.open("rb") as file:
            if file.read(6) != b"\x93NUMPY":
                raise UsageError(
                    f"{where}: it is no .npy file; numpy.save(path, array) makes one"
                )
            file.seek(0)
            _check_size(where, file)
        stored = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError, OverflowError, MemoryError) as error:
        raise UsageError(f"{where}: {error}") from error
    return Source(
        values=_checked(where, stored),
        dtype=DType.from_numpy(stored.dtype.newbyteorder("=")),
        description=f"{path.name}, {stored.dtype.name}",
    )


def _check_size(where: str, file: BinaryIO) -> None:
    """Refuse a file that holds less, or more, than its header says."""
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    elif version not in ((2, 0), (3, 0)):
        text = ".".join(map(str, version))
        raise UsageError(f"{where}: it is of version {text}, which numpy has not got")
    else:
        shape, _, dtype = np.lib.format.read_array_header_2_0(file)
    if dtype.hasobject:
        raise UsageError(
            f"{where}: it holds Python objects, which are never loaded; the scan takes "
            "float32, int32 or uint32"
        )
    if min(shape, default=0) < 0:
        raise UsageError(f"{where}: its header says that its shape is {shape}")
    said, begin = math.prod(shape) * dtype.itemsize, file.tell()
    there = file.seek(0, os.SEEK_END) - begin
    if there < said:
        raise UsageError(
            f"{where}: it is truncated: its header says {said:,} bytes of values, "
            f"{there:,} are there"
        )
    if there > said:
        raise UsageError(
            f"{where}: it has {there - said:,} bytes after its values; save one array "
            "to a file"
        )


def _checked(where: str, stored: NDArray[Any]) -> NDArray[Any]:
    native = stored.dtype.newbyteorder("=")
    if native not in [np.dtype(dtype.numpy) for dtype in _DTYPES]:
        raise UsageError(
            f"{where}: it holds {stored.dtype}, the scan takes float32, int32 or "
            "uint32; convert it with array.astype"
        )
    if stored.ndim != 1:
        raise UsageError(
            f"{where}: its shape is {stored.shape}, the scan takes one dimension; "
            "flatten it with array.ravel()"
        )
    if len(stored) > MAX_SCAN_LENGTH:
        raise UsageError(
            f"{where}: {len(stored)} values, the scan takes at most {MAX_SCAN_LENGTH}"
        )
    return np.array(stored, dtype=native, order="C", copy=True, subok=False)
