"""`benchmarks.tuning_beside` on the GPU: what tuning costs a service there.

Two rounds, of at most 5 s of tuning each.
"""

from __future__ import annotations

import accy_async
from benchmarks import tuning_beside

__all__ = ["main"]


def main(device: str = "cuda") -> None:
    accy_async.run(tuning_beside.service, device, 2, 5.0)


if __name__ == "__main__":
    main()
