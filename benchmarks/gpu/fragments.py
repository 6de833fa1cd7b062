"""Fragments beside PyTorch, torch.compile, CuPy, Triton and NVRTC.

The sections of `benchmarks.fragment_calls`, each in a process of its own with a time
limit, so that one that fails or hangs, a peer's compiler for instance, loses no other's
figures. The targets: 0.9 of the copy's rate elementwise, 0.8 in reductions, norms and
softmax ahead of PyTorch, half of cuBLAS in products of f32.
"""

from __future__ import annotations

import subprocess
import sys

from benchmarks.fragment_calls import SECTIONS

LIMIT_S = 150.0


def main(device: str = "cuda", limit_s: float = LIMIT_S) -> None:
    for name in SECTIONS:
        command = [sys.executable, "-m", "benchmarks.fragment_calls", name]
        try:
            ran = subprocess.run(
                [*command, "--device", device], timeout=limit_s, check=False
            )
        except subprocess.TimeoutExpired:
            print(f"fragments, {name}: not done within {limit_s:g} s\n")
            continue
        if ran.returncode:
            print(f"fragments, {name}: ended with {ran.returncode}\n")


if __name__ == "__main__":
    main()
