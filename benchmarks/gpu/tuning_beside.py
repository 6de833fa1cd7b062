"""`benchmarks.tuning_beside` on the GPU: what tuning costs a service there.

Two rounds of at most 6 s of tuning each; where the first found no winner in that time,
the second goes on from what it measured.
"""

from __future__ import annotations

import accy_async
from benchmarks import tuning_beside

__all__ = ["main"]


def main(device: str = "cuda") -> None:
    accy_async.run(tuning_beside.service, device, 2, 6.0)


if __name__ == "__main__":
    main()
