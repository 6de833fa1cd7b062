"""Tensor programs: what is computed, free of any device.

The data model, from small to large; all are frozen values:

* `TensorType`: a dtype and a static shape, ``f32[2,3]``.
* `Value`: an index and a type. Value ``i`` of a function is parameter ``i``, or
  the next result of its operations in their order; outside it means nothing.
* `Op`: what is done, without operands. One class for each family, its fields the
  attributes: `Unary`, `Binary`, `Compare` (with a kind), `Select`, `Convert`,
  `Constant`, `Iota`; `Broadcast`, `Reshape`, `Transpose`, `Slice`, `Concatenate`,
  `Pad`, `Reverse`; `Reduce`, `Scan`; `DotGeneral`, `Einsum`; `Gather`, `Scatter`;
  `Softmax`, `RowSparseCrossEntropy`; `KernelCall`; `Loop` (its body a `Function`).
  ``op.result_types(types)`` is the one shape rule; ``op.is_pure`` is false for
  kernel calls only, and for loops that hold one.
* `Operation`: an op, its operands, its results, and where it was traced from.
* `Function`: parameters, operations in a runnable order, results; verified when
  made. ``producers()`` and ``users()`` lead from values to operations.
* `Module`: functions by name; ``entry`` is the first.

A program is read with ``match``::

    for entry in function.operations:
        match entry.op:
            case Binary(kind=BinaryKind.ADD): ...
            case DotGeneral(lhs_contracting=(1,), rhs_contracting=(0,)): ...

and rewritten with `rewrite`, which asks a rule what takes each operation's place.
`canonical` drops what is unused, merges what is equal and orders the rest; what
`Builder` finishes is canonical. Equality and `Function.fingerprint` ignore names
and locations.

Operands of elementwise ops have exactly one type: broadcasts and conversions are
operations of their own. `kinds` says what is computed, to the edge cases;
`evaluate` computes it with numpy; `expand` writes composite ops
(softmax, einsum, cross entropy, mean) out in simpler ones.
"""

from accy_async.compiler.semantic.builder import Builder, FunctionBuilder
from accy_async.compiler.semantic.calls import KernelCall
from accy_async.compiler.semantic.canonicalization import canonical
from accy_async.compiler.semantic.einsum import EinsumSpec, EinsumStep
from accy_async.compiler.semantic.elementwise import (
    POINTWISE,
    Binary,
    Compare,
    Constant,
    Convert,
    Iota,
    Select,
    Unary,
)
from accy_async.compiler.semantic.expansion import COMPOSITES, expand, expand_operation
from accy_async.compiler.semantic.indexing import Gather, Scatter
from accy_async.compiler.semantic.kinds import (
    BinaryKind,
    ComparisonKind,
    OperandEffect,
    ReductionKind,
    ScanKind,
    ScatterKind,
    UnaryKind,
    default_accumulator,
)
from accy_async.compiler.semantic.limits import ContextLimits
from accy_async.compiler.semantic.loops import Loop
from accy_async.compiler.semantic.op import Op
from accy_async.compiler.semantic.products import DotGeneral, Einsum
from accy_async.compiler.semantic.program import Function, Module, Operation
from accy_async.compiler.semantic.reductions import Reduce, Scan
from accy_async.compiler.semantic.reference import evaluate
from accy_async.compiler.semantic.rewriting import rewrite, rewrite_module
from accy_async.compiler.semantic.rows import RowSparseCrossEntropy, Softmax
from accy_async.compiler.semantic.shaping import (
    Broadcast,
    Concatenate,
    Pad,
    Reshape,
    Reverse,
    Slice,
    Transpose,
)
from accy_async.compiler.semantic.types import MAX_TENSOR_BYTES, TensorType, Value

__all__ = [
    "POINTWISE",
    "COMPOSITES",
    "MAX_TENSOR_BYTES",
    "Binary",
    "BinaryKind",
    "Broadcast",
    "Builder",
    "Compare",
    "ComparisonKind",
    "Concatenate",
    "Constant",
    "ContextLimits",
    "Convert",
    "DotGeneral",
    "Einsum",
    "EinsumSpec",
    "EinsumStep",
    "Function",
    "FunctionBuilder",
    "Gather",
    "Iota",
    "KernelCall",
    "Loop",
    "Module",
    "Op",
    "OperandEffect",
    "Operation",
    "Pad",
    "Reduce",
    "ReductionKind",
    "Reshape",
    "Reverse",
    "RowSparseCrossEntropy",
    "Scan",
    "ScanKind",
    "Scatter",
    "ScatterKind",
    "Select",
    "Slice",
    "Softmax",
    "TensorType",
    "Transpose",
    "Unary",
    "UnaryKind",
    "Value",
    "canonical",
    "default_accumulator",
    "evaluate",
    "expand",
    "expand_operation",
    "rewrite",
    "rewrite_module",
]
