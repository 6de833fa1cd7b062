"""`benchmarks.tuning_beside` on the GPU: what tuning costs a service there.

Two rounds in at most two windows of each kind, 5 s each.
"""

from __future__ import annotations

import accy_async
from benchmarks import tuning_beside

__all__ = ["main"]


def main(device: str = "cuda") -> None:
    accy_async.run(tuning_beside.service, device, 2, 2)


if __name__ == "__main__":
    main()
