"""Which kernels can be functions of C++ under their own names."""

from __future__ import annotations

from collections.abc import Sequence

from accy_async.compiler.emit.naming import check_kernels
from accy_async.compiler.form import Kernel

__all__ = ["are_approximate", "check_cpp_kernels"]

_KEYWORDS = frozenset(
    """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char
    char16_t char32_t char8_t class co_await co_return co_yield compl concept const
    const_cast consteval constexpr constinit continue decltype default delete do
    double dynamic_cast else enum explicit export extern false float for friend goto
    if inline int long mutable namespace new noexcept not not_eq nullptr operator or
    or_eq private protected public register reinterpret_cast requires return short
    signed sizeof static static_assert static_cast struct switch template this
    thread_local throw true try typedef typeid typename union unsigned using virtual
    void volatile wchar_t while xor xor_eq
    device constant thread threadgroup kernel vertex fragment ray_data object_data
    half uint ulong uchar ushort metal main precise fast accy
    int8 int16 int64 uint8 uint16 uint64 status scalars stopped
    exp log tanh expf logf tanhf fabs fabsf floor floorf ceil ceilf trunc truncf rint
    rintf fmin fminf fmax fmaxf
    """.split()  # noqa: SIM905 - a list of words reads best as words
)


def check_cpp_kernels(kernels: Sequence[Kernel], language: str) -> None:
    """Refuse what is no kernel, or has no name of its own that C++ takes.

    Raises:
        InvalidType, InvalidValue: naming the kernel.
    """
    check_kernels(kernels, _is_taken, f"a name that {language} takes")


def _is_taken(name: str) -> bool:
    return name.startswith("_") or "__" in name or name in _KEYWORDS


def are_approximate(kernels: Sequence[Kernel]) -> bool:
    """Whether one text may compute all of them approximately: helpers are shared."""
    return all(kernel.is_approximate for kernel in kernels)
