"""Judging the demo's results: against the documented order, and against float64.

A result has to have the bits of `reference_scan`, which is the scan done by
numpy in the documented order of summation. That this order is a good one is
shown by its distance from a float64 `numpy.cumsum`: no more than Higham's bound
allows. As every result has the same bits, the distance is taken once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from accy_async.compiler.kernels import reference_scan, scan_additions

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Distance", "distance_from_exact", "first_difference", "reference"]

_CHUNK = 1 << 20
_UNIT_F32 = 2.0**-24
_UNIT_F64 = 2.0**-53


@attrs.frozen(kw_only=True)
class Distance:
    """How far a scan is from numpy's.

    Attributes:
        additions: through which an element passes at most.
        values: how many results could be judged: those before the first NaN or
            infinity, and before float32 overflows.
        largest_error: greatest absolute distance from the float64 sum; for
            integers, from numpy's own, which wraps as the kernels do.
        largest_share: greatest part of the bound that an error takes; 1 is the
            bound itself.
        largest_sum: greatest absolute value of the float64 sum.
        numpy_error: as ``largest_error``, of numpy's own cumsum in the values' type.
    """

    additions: int
    values: int
    largest_error: float
    largest_share: float
    largest_sum: float = 0.0
    numpy_error: float = 0.0

    @property
    def is_within_bound(self) -> bool:
        """True where every error is allowed."""
        return self.largest_share <= 1.0


def reference(values: NDArray[Any]) -> NDArray[Any]:
    """The scan in the documented order of summation, by numpy."""
    return reference_scan(values)


def first_difference(got: NDArray[Any], expected: NDArray[Any]) -> int | None:
    """The first place where the bits differ, or None; any NaN equals any other."""
    if got.shape != expected.shape:
        return 0
    for start in range(0, len(got), _CHUNK):
        mine, theirs = got[start : start + _CHUNK], expected[start : start + _CHUNK]
        differs = mine.view(np.uint32) != theirs.view(np.uint32)
        if not differs.any():
            continue
        if mine.dtype.kind == "f":
            differs &= ~(np.isnan(mine) & np.isnan(theirs))
        places = np.flatnonzero(differs)
        if len(places):
            return start + int(places[0])
    return None


def distance_from_exact(values: NDArray[Any], scanned: NDArray[Any]) -> Distance:
    """How far a scan of ``values`` is from numpy's; takes little memory.

    The bound is ``gamma * (|x[0]| + ... + |x[i]|)`` with ``gamma = k u / (1 - k u)``
    for ``k`` additions and u = 2^-24, and the float64 sum's own error on top.
    """
    additions = scan_additions(len(values))
    if values.dtype.kind != "f":
        expected = np.cumsum(values, dtype=values.dtype)
        wrong = int(np.count_nonzero(expected != scanned))
        return Distance(
            additions=additions,
            values=len(values),
            largest_error=float(wrong != 0),
            largest_share=float("inf") if wrong else 0.0,
        )
    gamma = _gamma(additions, _UNIT_F32) + _gamma(max(len(values), 1), _UNIT_F64)
    total = magnitude = 0.0
    judged, error, share, largest, numpy_error = 0, 0.0, 0.0, 0.0, 0.0
    with np.errstate(all="ignore"):
        plain = np.cumsum(values, dtype=values.dtype)
        for start in range(0, len(values), _CHUNK):
            chunk = values[start : start + _CHUNK].astype(np.float64)
            exact = np.cumsum(np.concatenate(([total], chunk)))[1:]
            sizes = np.cumsum(np.concatenate(([magnitude], np.abs(chunk))))[1:]
            total, magnitude = float(exact[-1]), float(sizes[-1])
            count = int(np.count_nonzero(sizes <= np.finfo(np.float32).max))
            if count:
                judged += count
                here, exact = slice(start, start + count), exact[:count]
                errors = np.abs(scanned[here] - exact)
                bounds = gamma * sizes[:count]
                none = np.where(errors > 0, np.inf, 0.0)
                shares = np.divide(errors, bounds, out=none, where=bounds > 0)
                error = max(error, float(errors.max()))
                share = max(share, float(shares.max()))
                largest = max(largest, float(np.abs(exact).max()))
                numpy_error = max(numpy_error, float(np.abs(plain[here] - exact).max()))
            if count < len(chunk):
                break
    return Distance(
        additions=additions,
        values=judged,
        largest_error=error,
        largest_share=share,
        largest_sum=largest,
        numpy_error=numpy_error,
    )


def _gamma(count: int, unit: float) -> float:
    return count * unit / (1 - count * unit)
