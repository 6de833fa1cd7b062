"""The family of matrix products: a kernel for each size, dtype and thread block.

A family is known by its name and version, its kernels by names that say what they are
for, so that a tuning record can name a winner, and a registry hold several kernels for
one problem::

    accy.kernel.matrix_product.f32.5x7x3.t16x16

computes ``[5, 3]`` by ``[3, 7]`` in f32, with blocks of 16 by 16 threads. The buffers
are the result, the left and the right operand.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from accy_async.artifact.entry import KernelCallArtifact, KernelCallRegistry
from accy_async.artifact.formats import BackendKind
from accy_async.artifact.planned import CompileLaunch
from accy_async.compiler.kernelization import (
    KernelStep,
    TargetProfile,
    WorkItem,
    kernelize,
)
from accy_async.compiler.kernelization.schedules import (
    MatrixProductSchedule,
    Threads2D,
    matrix_product_thread_candidates_for_extents,
    matrix_product_threads_for_extents,
)
from accy_async.compiler.kernels.payloads import code_level, kernel_payload
from accy_async.compiler.semantic import Builder, Function, default_accumulator
from accy_async.dtypes import DType
from accy_async.errors import InvalidValue
from accy_async.values import (
    enum,
    instances,
    integer,
    integers,
    optional,
    text,
    to_tuple,
)

__all__ = [
    "MATRIX_PRODUCT_FAMILY",
    "MATRIX_PRODUCT_FAMILY_VERSION",
    "MatrixProduct",
    "MatrixProductRequest",
    "OwnedCatalogDescriptor",
    "create_owned_kernel_call_artifact_registry",
    "matrix_product_candidates",
    "matrix_product_family_target",
    "select_owned",
]

MATRIX_PRODUCT_FAMILY = "accy.kernel.matrix_product"
"""The family's name, with which its kernels' names begin."""

MATRIX_PRODUCT_FAMILY_VERSION = 1
"""The version of what the family's kernels take and give."""

_EXTENT = integer(0, 2**31 - 1)


@attrs.frozen(kw_only=True)
class MatrixProduct:
    """A problem of the family: ``[m, k]`` by ``[k, n]``, and how it is computed.

    Attributes:
        m, n, k: rows, columns, and what is summed over.
        dtype: the operands' and the result's element type.
        accumulation_dtype: what sums are kept in; None: f32 for f16 and bf16, else
            the dtype.
        threads: of a block; None leaves them to the heuristic.
    """

    m: int = attrs.field(validator=_EXTENT)
    n: int = attrs.field(validator=_EXTENT)
    k: int = attrs.field(validator=_EXTENT)
    dtype: DType = attrs.field(default=DType.F32, validator=enum(DType))
    accumulation_dtype: DType | None = attrs.field(
        default=None, validator=optional(enum(DType))
    )
    threads: Threads2D | None = attrs.field(
        default=None, validator=optional(instances(Threads2D))
    )

    def __attrs_post_init__(self) -> None:
        if self.dtype is DType.BOOL:
            raise InvalidValue("MatrixProduct.dtype", self.dtype, "a dtype with sums")

    @property
    def problem_name(self) -> str:
        """The problem in the family's words: ``f32.5x7x3`` for m, n, k."""
        name = f"{self.dtype}.{self.m}x{self.n}x{self.k}"
        kept = self.accumulation_dtype
        if kept is None or kept is default_accumulator(self.dtype):
            return name
        return f"{name}.in_{kept}"

    def threads_on(self, backend: BackendKind) -> Threads2D:
        """The thread block asked for, else the heuristic's."""
        return self.threads or matrix_product_threads_for_extents(
            self.m, self.n, backend=backend
        )

    def schedule(self, backend: BackendKind) -> MatrixProductSchedule:
        """The schedule of that thread block."""
        return MatrixProductSchedule(thread_blocks=self.threads_on(backend))

    def function(self) -> Function:
        """What it computes."""
        builder = Builder("matrix_product")
        f = builder.begin_function(
            "matrix_product",
            [
                builder.tensor(self.dtype, (self.m, self.k)),
                builder.tensor(self.dtype, (self.k, self.n)),
            ],
        )
        lhs, rhs = f.parameters
        kept = self.accumulation_dtype or default_accumulator(self.dtype)
        f.return_([f.dot_general(lhs, rhs, [1], [0], accumulate=kept)])
        f.finish()
        return builder.finish().entry


def matrix_product_family_target(
    product: MatrixProduct, backend: BackendKind = BackendKind.CUDA
) -> str:
    """The name of the family's kernel for a problem and its thread block."""
    threads = product.threads_on(backend)
    return f"{MATRIX_PRODUCT_FAMILY}.{product.problem_name}.t{threads.x}x{threads.y}"


def matrix_product_candidates(
    product: MatrixProduct, backend: BackendKind = BackendKind.CUDA
) -> tuple[MatrixProduct, ...]:
    """The problem with each thread block there is to choose from, best first."""
    return tuple(
        attrs.evolve(product, threads=threads)
        for threads in matrix_product_thread_candidates_for_extents(
            product.m, product.n, backend=backend
        )
    )


@attrs.frozen(kw_only=True)
class MatrixProductRequest:
    """A product of two tensors by letters, as in einsum, to find a kernel for."""

    dtype: DType = attrs.field(validator=enum(DType))
    lhs_indices: str = attrs.field(validator=text(empty=True))
    rhs_indices: str = attrs.field(validator=text(empty=True))
    output_indices: str = attrs.field(validator=text(empty=True))
    lhs_dims: tuple[int, ...] = attrs.field(
        converter=to_tuple, validator=integers(0, 2**31 - 1)
    )
    rhs_dims: tuple[int, ...] = attrs.field(
        converter=to_tuple, validator=integers(0, 2**31 - 1)
    )
    output_dims: tuple[int, ...] = attrs.field(
        converter=to_tuple, validator=integers(0, 2**31 - 1)
    )
    schedule: MatrixProductSchedule | None = attrs.field(
        default=None, validator=optional(instances(MatrixProductSchedule))
    )


@attrs.frozen(kw_only=True)
class OwnedCatalogDescriptor:
    """A kernel of a family, by name, before there is code of it."""

    product: MatrixProduct = attrs.field(validator=instances(MatrixProduct))
    version: int = attrs.field(
        default=MATRIX_PRODUCT_FAMILY_VERSION, validator=integer()
    )

    def target(self, backend: BackendKind = BackendKind.CUDA) -> str:
        """The name it is registered under."""
        return matrix_product_family_target(self.product, backend)

    def step(self, profile: TargetProfile) -> KernelStep:
        """Its kernel for a target, with its launch."""
        item = WorkItem(
            work_item_id=0,
            kind=CompileLaunch.DOT_GENERAL,
            function=self.product.function(),
        )
        schedule = self.product.schedule(profile.backend)
        step = kernelize(item, profile, schedule).step
        name = self.target(profile.backend).replace(".", "_")
        return attrs.evolve(step, kernel=attrs.evolve(step.kernel, name=name))

    def entry(
        self, profile: TargetProfile, *, level: str | None = None
    ) -> KernelCallArtifact:
        """Its registry entry, with code.

        Raises:
            CapabilityMismatch, RuntimeUnavailable, CompilationError: there is no code
                of it for the format.
        """
        step = self.step(profile)
        settled = code_level(profile.format, level)
        return KernelCallArtifact(
            target=self.target(profile.backend),
            version=self.version,
            format=profile.format,
            entry_name=step.kernel.name,
            argument_count=len(step.kernel.buffers),
            payload=kernel_payload(step.kernel, profile.format, settled),
            launch=step.launch,
            launch_resources=step.launch_resources,
            required_dtypes=step.required_dtypes,
        )


def select_owned(request: MatrixProductRequest) -> OwnedCatalogDescriptor | None:
    """The family's kernel for a product by letters; None where it has none.

    It has one for ``mk,kn->mn``, whatever the letters are.
    """
    lhs, rhs, out = request.lhs_indices, request.rhs_indices, request.output_indices
    if not len(lhs) == len(rhs) == len(out) == len({*lhs, *rhs}) - 1 == 2:
        return None
    if lhs[1] != rhs[0] or out != lhs[0] + rhs[1] or request.dtype is DType.BOOL:
        return None
    dims = request.lhs_dims, request.rhs_dims, request.output_dims
    if any(len(extents) != 2 for extents in dims):
        return None
    (m, k), (depth, n), result = dims
    if k != depth or result != (m, n):
        return None
    threads = None if request.schedule is None else request.schedule.thread_blocks
    return OwnedCatalogDescriptor(
        product=MatrixProduct(m=m, n=n, k=k, dtype=request.dtype, threads=threads)
    )


def create_owned_kernel_call_artifact_registry(
    profile: TargetProfile,
    descriptors: Sequence[OwnedCatalogDescriptor],
    *,
    level: str | None = None,
) -> KernelCallRegistry:
    """A registry of these kernels for one target.

    Blocks for some tens of ms a kernel: call it in a worker thread.

    Raises:
        InvalidValue: two of one name.
        CapabilityMismatch, RuntimeUnavailable, CompilationError: as
            `OwnedCatalogDescriptor.entry` says.
    """
    return KernelCallRegistry(
        descriptor.entry(profile, level=level) for descriptor in descriptors
    )
