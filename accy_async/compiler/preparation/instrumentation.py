"""What is told of preparing and compiling a fragment: phases and how long each took."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum

import attrs

from accy_async.errors import InvalidType

__all__ = ["FragmentInstrumentation", "FragmentPhase"]


class FragmentPhase(str, Enum):
    """A step from a program to a loaded fragment, in the order in which they come."""

    LOWER_TENSOR_PROGRAM = "lower_tensor_program"
    """Tracing a function into a module; left out where the module is given."""

    RUN_CONTRACT_PIPELINE = "run_contract_pipeline"
    RUN_TENSOR_PIPELINE = "run_tensor_pipeline"
    RUN_DISPATCH_PIPELINE = "run_dispatch_pipeline"
    RUN_MEMORY_PIPELINE = "run_memory_pipeline"
    RUN_KERNEL_PIPELINE = "run_kernel_pipeline"
    RUN_TARGET_PIPELINE = "run_target_pipeline"

    PLAN_CREATE_BACKEND_ARTIFACTS = "plan_create_backend_artifacts"
    """Making code of the kernels, or finding it on disk."""

    COMPILE_FRAGMENT = "compile_fragment"
    """Putting code, slots and kernels together."""

    IMPORT_LAUNCH_TUNING = "import_launch_tuning"
    """Reading launch tuning records; left out where none are given."""

    LOAD_BACKEND_ARTIFACTS = "load_backend_artifacts"
    """Loading the code into the device."""

    def __str__(self) -> str:
        return self.value


@attrs.frozen(kw_only=True)
class FragmentInstrumentation:
    """Who is told of each phase.

    Attributes:
        observe: called with the phase and its time in ns when the phase has ended
            well, in the thread that ran it. What it raises ends the compilation.
    """

    observe: Callable[[FragmentPhase, int], None] | None = None

    def __attrs_post_init__(self) -> None:
        if self.observe is not None and not callable(self.observe):
            raise InvalidType(
                "FragmentInstrumentation.observe", self.observe, "a callable, or None"
            )

    def record(self, phase: FragmentPhase, elapsed_ns: int) -> None:
        """Tell of a phase that took so long."""
        if self.observe is not None:
            self.observe(phase, elapsed_ns)

    @contextmanager
    def timed(self, phase: FragmentPhase) -> Iterator[None]:
        """Time what is done within, and tell of it if it ends well."""
        begun = time.perf_counter_ns()
        yield
        self.record(phase, time.perf_counter_ns() - begun)
