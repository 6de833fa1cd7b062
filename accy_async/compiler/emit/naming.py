"""Which kernels can be made together: each under its own name, which is its symbol."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from accy_async.compiler.form import Kernel
from accy_async.errors import InvalidType, InvalidValue

__all__ = ["check_kernels"]


def check_kernels(
    kernels: Sequence[Kernel], is_taken: Callable[[str], bool], expected: str
) -> None:
    """Refuse what is no kernel, or has no name of its own that can be a symbol.

    Args:
        kernels: that are made together.
        is_taken: whether a name stands for something else there.
        expected: what is wanted instead of such a name.

    Raises:
        InvalidType, InvalidValue: naming the kernel.
    """
    names = set[str]()
    for index, kernel in enumerate(kernels):
        if not isinstance(kernel, Kernel):
            raise InvalidType(f"kernels[{index}]", kernel, "a Kernel")
        name = kernel.name
        if name in names:
            raise InvalidValue(f"kernels[{index}].name", name, "a name of its own")
        if is_taken(name):
            raise InvalidValue(f"kernels[{index}].name", name, expected)
        names.add(name)
    if not names:
        raise InvalidValue("kernels", kernels, "at least one kernel")
