"""Fragments: compiled tensor programs, loaded onto a device and invoked.

A `CompiledFragment` is a value: kernels in one format, and the slots that they work
on. `load_fragment` puts it onto a device as a `LoadedFragment`, which is called with
arrays, or step by step with `InvocationBindings`. `Session.load_fragment` does both,
from a function of arrays on.
"""

from accy_async.artifact.summary import KernelSummaries, KernelSummary
from accy_async.compiler.preparation import (
    FragmentCompilerOptions,
    FragmentInstrumentation,
    FragmentPhase,
    MathTier,
)
from accy_async.fragment.bindings import InvocationBindings
from accy_async.fragment.compiled import CompiledFragment
from accy_async.fragment.compiling import compile_fragment, target_profile
from accy_async.fragment.function import FragmentFunction
from accy_async.fragment.loaded import LoadedFragment
from accy_async.fragment.loading import load_fragment
from accy_async.tuning.choice import (
    LaunchCandidateMeasurement,
    LaunchTuning,
    LaunchTuningSelection,
)

__all__ = [
    "CompiledFragment",
    "FragmentCompilerOptions",
    "FragmentFunction",
    "FragmentInstrumentation",
    "FragmentPhase",
    "InvocationBindings",
    "KernelSummaries",
    "KernelSummary",
    "LaunchCandidateMeasurement",
    "LaunchTuning",
    "LaunchTuningSelection",
    "LoadedFragment",
    "MathTier",
    "compile_fragment",
    "load_fragment",
    "target_profile",
]
