"""Arrays of made-up libraries: on a GPU that is not there, or with flaws."""

from __future__ import annotations

from collections.abc import Callable

from accy_async.dtypes import DType
from accy_async.interop.dlpack import CUDA, Tensor, make_capsule

__all__ = ["CudaArray", "InterfaceArray", "Producer"]


class Producer:
    """Speaks DLPack as it is told to.

    Attributes:
        asked: the keywords of every call of ``__dlpack__``.
        released: how many of its tensors were given back.
    """

    def __init__(
        self,
        tensor: Tensor,
        *,
        is_versioned: bool = True,
        refuses: Exception | None = None,
    ) -> None:
        self.tensor = tensor
        self.is_versioned = is_versioned
        self.refuses = refuses
        self.asked: list[dict[str, object]] = []
        self.released = 0

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.tensor.device

    def __dlpack__(self, **keywords: object) -> object:
        if not self.is_versioned and "max_version" in keywords:
            raise TypeError("unexpected keyword argument 'max_version'")
        self.asked.append(keywords)
        if self.refuses is not None:
            raise self.refuses
        return make_capsule(self.tensor, self._release, is_versioned=self.is_versioned)

    def _release(self) -> None:
        self.released += 1


def cuda_tensor(**fields: object) -> Tensor:
    given: dict[str, object] = {
        "address": 0x1000,
        "device": (CUDA, 0),
        "dtype": DType.F32,
        "shape": (4, 8),
        **fields,
    }
    return Tensor(**given)  # type: ignore[arg-type]


class CudaArray(Producer):
    """An array on GPU 0, of 4 by 8 f32 unless told otherwise."""

    def __init__(
        self,
        *,
        is_versioned: bool = True,
        refuses: Exception | None = None,
        **fields: object,
    ) -> None:
        super().__init__(
            cuda_tensor(**fields), is_versioned=is_versioned, refuses=refuses
        )


class InterfaceArray:
    """Shows a CUDA array interface, and nothing else."""

    def __init__(
        self, change: Callable[[dict[str, object]], object] = dict, **fields: object
    ) -> None:
        shown: dict[str, object] = {
            "shape": (4, 8),
            "typestr": "<f4",
            "data": (0x1000, False),
            "version": 3,
            **fields,
        }
        change(shown)
        self.__cuda_array_interface__ = shown
