"""From a tensor program to an artifact plan, in six phases.

contract, tensor, dispatch, memory, kernel and target: each a module of that name, a
function from the phase before to the next. `prepare` runs them all and gives a
`PreparedJob`, which holds everything but code; `compile_plan` makes the code.
"""

from accy_async.compiler.kernelization import MathTier, TargetProfile
from accy_async.compiler.preparation.compiling import compile_plan
from accy_async.compiler.preparation.instrumentation import (
    FragmentInstrumentation,
    FragmentPhase,
)
from accy_async.compiler.preparation.job import (
    GeneratedKernelSummary,
    PreparedJob,
    prepare,
)
from accy_async.compiler.preparation.options import FragmentCompilerOptions
from accy_async.compiler.preparation.passes import (
    PassStatistics,
    PhaseStatistics,
    PreparationRun,
)

__all__ = [
    "FragmentCompilerOptions",
    "FragmentInstrumentation",
    "FragmentPhase",
    "GeneratedKernelSummary",
    "MathTier",
    "PassStatistics",
    "PhaseStatistics",
    "PreparationRun",
    "PreparedJob",
    "TargetProfile",
    "compile_plan",
    "prepare",
]
