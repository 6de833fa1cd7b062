"""Scatters whose outcome shows no order: a thread for each update, all at once.

* A scatter that sets: each update leaves its number where it goes, the largest number
  stays, and each element of the result takes the update that left it.
* One that adds integers of 32 bits: the updates are added where they go; such sums
  wrap, so that they are the same in any order.
"""

from __future__ import annotations

from accy_async.compiler.form import BinaryOperation
from accy_async.compiler.kernelization.scattercode import ScatterWork
from accy_async.compiler.kernelization.sorts import words
from accy_async.compiler.kernelization.work import KernelStep
from accy_async.compiler.semantic import TensorType
from accy_async.dtypes import DType

__all__ = ["added", "marked", "shows_no_order"]


def shows_no_order(dtype: DType) -> bool:
    """Whether sums of the dtype can be added up in any order, in one step each."""
    return dtype in (DType.I32, DType.U32)


def marked(work: ScatterWork) -> tuple[list[KernelStep], list[TensorType]]:
    """The kernels of a scatter that sets, and the types of what passes between them."""
    marks = words(work.lines.extent)
    return [_clear(work, marks), _mark(work, marks), _take(work, marks)], [marks]


def added(work: ScatterWork) -> tuple[list[KernelStep], list[TensorType]]:
    """The kernels of a scatter that adds."""
    return [_copy(work), _add(work)], []


def _clear(work: ScatterWork, marks: TensorType) -> KernelStep:
    count = work.lines.extent
    code = work.code("scatter_clear", count, written=[marks])
    with code.a.thread_tasks(count) as at:
        code.a.results[0][at] = 0
    return code.step(count)


def _mark(work: ScatterWork, marks: TensorType) -> KernelStep:
    """The number of the last update of each place, counted from 1."""
    count = work.lines.updates
    code = work.code("scatter_marks", count, written=[marks], updated=True)
    with code.a.thread_tasks(count) as update:
        inside, at = code.target(update)
        number = (update + 1).cast(DType.U32)
        with code.a.k.when(inside):
            code.a.results[0].combine(BinaryOperation.MAXIMUM, at, number)
    return code.step(count)


def _take(work: ScatterWork, marks: TensorType) -> KernelStep:
    lines = work.lines
    count = lines.count * lines.extent
    code = work.code(lines.name, count, read=[marks])
    a, k, out = code.a, code.a.k, code.a.results[0]
    with a.thread_tasks(count) as own:
        line, at = code.place(own, lines.extent)
        number = k.let(None, a.wide(a.partials[0][at]))
        with k.when(number > 0), a.places.scope():
            out[own] = code.update_of(line, k.let(None, number - 1))
        with k.otherwise(), a.places.scope():
            out[own] = code.before(own)
    return code.step(count)


def _copy(work: ScatterWork) -> KernelStep:
    count = work.lines.count * work.lines.extent
    code = work.code("scatter_copy", count)
    with code.a.thread_tasks(count) as own:
        code.a.results[0][own] = code.before(own)
    return code.step(count)


def _add(work: ScatterWork) -> KernelStep:
    lines = work.lines
    count = lines.count * lines.updates
    code = work.code(lines.name, count, updated=True)
    with code.a.thread_tasks(count) as own:
        line, update = code.place(own, lines.updates)
        inside, at = code.target(update)
        with code.a.k.when(inside), code.a.places.scope():
            where = code.where(line, at, lines.extent)
            code.a.results[0].combine(BinaryOperation.ADD, where, code.update(own))
    return code.step(count)
