"""Arrays, streams and kernels of other libraries, by the protocols that they share.

Nothing here imports another library, or knows a device: it reads and writes what
DLPack, the CUDA array interface and ``__cuda_stream__`` say. Backends stand on it
to take memory that others own, and to lend out their own.
"""

from accy_async.interop.dlpack import ImportedTensor, Tensor, make_capsule, take_capsule
from accy_async.interop.foreign import ForeignArray, describe, device_of, is_foreign
from accy_async.interop.interface import make_interface, read_interface
from accy_async.interop.kernels import cupy_kernel, numba_kernel, triton_kernel
from accy_async.interop.streams import NativeStream, stream_number

__all__ = [
    "ForeignArray",
    "ImportedTensor",
    "NativeStream",
    "Tensor",
    "cupy_kernel",
    "describe",
    "device_of",
    "is_foreign",
    "make_capsule",
    "make_interface",
    "numba_kernel",
    "read_interface",
    "stream_number",
    "take_capsule",
    "triton_kernel",
]
