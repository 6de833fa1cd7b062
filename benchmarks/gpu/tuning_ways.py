"""Ways to compare two kernels: ours, Triton's do_bench, Kernel Tuner.

Each compares the default with another kernel that does so many steps, and answers with
the default's time over the other's, and which is to be used.
"""

from __future__ import annotations

import ctypes
import io
from abc import ABC, abstractmethod
from contextlib import redirect_stdout
from typing import Any

import attrs
import numpy as np

from accy_async.backends.base import Backend
from accy_async.tuning import MeasureOptions, Standing
from accy_async.tuning.measuring import Candidate, measure
from benchmarks.gpu.busywork import LENGTH, SOURCE, THREADS, Busywork

__all__ = ["WAYS", "Answer", "Way"]

SAME = 1.01
"""What knows no "no difference" is taken to say it below 1 %."""


@attrs.frozen
class Answer:
    """What a comparison came to.

    Attributes:
        ratio: the default's time over the other's.
        says: ``faster``, ``slower``, ``the same`` or ``unsure``.
        is_flagged: whether it said that the machine did not hold still.
    """

    ratio: float
    says: str
    is_flagged: bool = False


class Way(ABC):
    """One way; opened once, for kernels of these numbers of steps."""

    name: str

    @abstractmethod
    def __init__(self, backend: Backend, steps: tuple[int, ...]) -> None: ...

    @abstractmethod
    async def compare(self, default: int, other: int) -> Answer:
        """Measure both from nothing."""


class Rounds(Way):
    """`accy_async.tuning.measure` as it is by default."""

    name = "accy_async"

    def __init__(self, backend: Backend, steps: tuple[int, ...]) -> None:
        work = Busywork(backend)
        self._backend = backend
        self._requests = {one: [work.request(one) for _ in range(2)] for one in steps}
        self._seed = 0

    async def compare(self, default: int, other: int) -> Answer:
        self._seed += 1
        options = MeasureOptions()
        rules = attrs.evolve(options.rules, seed=self._seed)
        outcome = await measure(
            self._backend,
            [
                Candidate(name="default", request=self._requests[default][0]),
                Candidate(name="other", request=self._requests[other][1]),
            ],
            attrs.evolve(options, rules=rules),
        )
        comparison = outcome.candidate("other").comparison
        assert comparison is not None
        words = {
            Standing.FASTER: "faster",
            Standing.SLOWER: "slower",
            Standing.NO_DIFFERENCE: "the same",
            Standing.UNDECIDED: "unsure",
        }
        return Answer(
            comparison.speedup, words[comparison.standing], not outcome.is_storable
        )


def _by_time(default: float, other: float) -> Answer:
    ratio = default / other
    says = "faster" if ratio > SAME else "slower" if ratio < 1 / SAME else "the same"
    return Answer(ratio, says)


class DoBench(Way):
    """``triton.testing.do_bench``, one kernel after the other."""

    name = "triton.testing.do_bench"

    def __init__(self, backend: Backend, steps: tuple[int, ...]) -> None:
        import torch
        from triton.testing import do_bench

        self._bench: Any = do_bench
        work = Busywork(backend)
        torch.zeros(1, device="cuda")  # so that its context is this thread's
        # On PyTorch's stream, which its events are recorded on.
        stream = int(torch.cuda.current_stream().cuda_stream)
        self._calls = {one: _bare_launch(work, one, stream) for one in steps}

    async def compare(self, default: int, other: int) -> Answer:
        return _by_time(*(self._bench(self._calls[one]) for one in (default, other)))


def _bare_launch(work: Busywork, steps: int, stream: int) -> Any:  # noqa: ANN401
    """A launch by the bindings, on a stream of somebody else's."""
    from cuda.bindings import driver

    from accy_async.compiler.nvrtc import compile_cuda

    binary = compile_cuda(
        SOURCE,
        "work",
        architecture=work.backend.capabilities.identity.architecture,
        options=(f"-DSTEPS={steps}", f"-DTHREADS={THREADS}"),
        cache=False,
    )
    assert isinstance(binary.payload, bytes)
    error, module = driver.cuModuleLoadData(binary.payload)
    assert not error, error
    error, function = driver.cuModuleGetFunction(module, b"work")
    assert not error, error
    places = []
    for _ in range(2):
        error, place = driver.cuMemAlloc(4 * LENGTH)
        assert not error, error
        places.append(int(place))
    values = (*places, LENGTH)
    kinds = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
    blocks = LENGTH // THREADS

    def launch() -> None:
        (error,) = driver.cuLaunchKernel(
            function, blocks, 1, 1, THREADS, 1, 1, 0, stream, (values, kinds), 0
        )
        assert not error, error

    return launch


class KernelTuner(Way):
    """``kernel_tuner.tune_kernel`` over two values, as it is by default."""

    name = "Kernel Tuner"

    def __init__(self, backend: Backend, steps: tuple[int, ...]) -> None:
        from kernel_tuner import tune_kernel

        self._tune: Any = tune_kernel
        x = np.zeros(LENGTH, np.float32)
        self._arguments = [np.zeros_like(x), x, np.int32(LENGTH)]
        self._language = "nvcuda"
        try:
            self._times({"STEPS": list(steps)})
        except Exception:  # noqa: BLE001 - its bindings are older than those here
            self._language = "cupy"
            self._times({"STEPS": list(steps)})
        self.name = f"Kernel Tuner, {self._language}"

    async def compare(self, default: int, other: int) -> Answer:
        # Of equal kernels, two that differ in a name that nothing uses.
        tunable = {"STEPS": [default, other]}
        key, first = "STEPS", default
        if default == other:
            tunable = {"STEPS": [default], "ALIAS": [0, 1]}
            key, first = "ALIAS", 0
        times = {one[key] == first: one["time"] for one in self._times(tunable)}
        return _by_time(float(times[True]), float(times[False]))

    def _times(self, tunable: dict[str, list[int]]) -> list[dict[str, Any]]:
        with redirect_stdout(io.StringIO()):
            results, _ = self._tune(
                "work",
                SOURCE,
                LENGTH,
                self._arguments,
                {"block_size_x": [THREADS], **tunable},
                lang=self._language,
                quiet=True,
            )
        found: list[dict[str, Any]] = results
        return found


WAYS: tuple[type[Way], ...] = (Rounds, DoBench, KernelTuner)
