"""``accy-async bench``."""

from accy_async.cli.bench.command import bench

__all__ = ["bench"]
