"""From a tensor program to an artifact plan, in six phases.

contract, tensor, dispatch, memory, kernel and target: each a module of that name, a
function from the phase before to the next. `prepare` runs them all and gives a
`PreparedJob`, which holds everything but code; `compile_plan` makes the code.
"""

from accy_async.compiler.kernelization import MathTier, TargetProfile
from accy_async.compiler.preparation.compiling import compile_plan
from accy_async.compiler.preparation.families import matrix_product_tuning_key
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
from accy_async.compiler.preparation.recipe import (
    Recipe,
    decode_recipe,
    encode_recipe,
)
from accy_async.compiler.preparation.schedules import (
    matrix_product_problem,
    row_pipeline_problem,
    scan_problem,
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
    "Recipe",
    "TargetProfile",
    "compile_plan",
    "decode_recipe",
    "encode_recipe",
    "matrix_product_problem",
    "matrix_product_tuning_key",
    "prepare",
    "row_pipeline_problem",
    "scan_problem",
]
