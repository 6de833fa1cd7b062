"""Choosing between ways to do the same: what was measured, kept and found again.

`accy_async.tuning.records` are the measurements as values and as bytes.
"""

from accy_async.tuning import records

__all__ = ["records"]
