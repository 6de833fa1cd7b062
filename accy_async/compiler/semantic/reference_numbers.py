"""How the reference computes and rounds."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from accy_async.compiler.semantic.numbers import Array, carrier, round_bf16
from accy_async.dtypes import DType

__all__ = ["Arithmetic"]


@attrs.frozen
class Arithmetic:
    """The numpy dtypes that stand for ours, and conversions between them.

    ``wide`` makes every float a double.
    """

    wide: bool

    def working(self, dtype: DType) -> np.dtype[Any]:
        """What an operation on the dtype is computed in."""
        if not dtype.is_float:
            return dtype.numpy
        if self.wide or dtype is DType.F64:
            return np.dtype(np.float64)
        return np.dtype(np.float32)

    def settle(self, array: Array, dtype: DType) -> Array:
        """A computed array rounded to a dtype and held as the reference holds it."""
        if not dtype.is_float:
            return np.asarray(array, dtype.numpy)
        if self.wide:
            return np.asarray(array, np.float64)
        if dtype is DType.BF16:
            return round_bf16(np.asarray(array, np.float32))
        return np.asarray(array, carrier(dtype))

    def convert(self, array: Array, source: DType, target: DType) -> Array:
        """The numbers in another dtype, as `Convert` says."""
        if target is DType.BOOL:
            return np.asarray(array != 0)
        if not target.is_integer:
            narrow = target in (DType.F16, DType.BF16) and not self.wide
            return array.astype(np.float32) if narrow else array
        if not source.is_float:
            return array.astype(target.numpy)
        whole = np.trunc(np.nan_to_num(array.astype(np.float64), nan=0.0))
        low = whole <= float(target.minimum)
        high = whole >= float(target.maximum)
        inside = np.where(low | high, 0.0, whole).astype(target.numpy)
        settled = np.where(low, target.numpy.type(target.minimum), inside)
        return np.where(high, target.numpy.type(target.maximum), settled)
