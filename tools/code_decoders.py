"""The decoders of code: images, objects, SPIR-V, and what NVRTC made."""

from __future__ import annotations

import hashlib
from pathlib import Path

import attrs

from accy_async.artifact.formats import ArtifactFormat
from accy_async.artifact.native import (
    BufferParameter,
    KernelSignature,
    SignatureTable,
    decode_image,
    encode_image,
    encode_signatures,
    link_object,
    parse_object,
)
from accy_async.artifact.native.imports import IMPORTABLE
from accy_async.artifact.native.signature import decode_signatures
from accy_async.artifact.spirv.read import read_spirv
from accy_async.compiler.nvrtc import CudaBinary
from accy_async.dtypes import DType
from tests.native.objects import text_object
from tests.spirv.assemble import ADD, assemble
from tools.decoder import JSON, MESSAGE_PACK, SUM_BYTES, Decoder, named

__all__ = ["cuda_binary", "image", "object_file", "signatures", "spirv"]


def image(_: Path) -> Decoder:
    given = text_object(b"\xc3")
    linked = decode_image(link_object(given))
    made = attrs.evolve(
        linked,
        text=bytes(16),
        rodata=bytes(40),
        data=bytes(16),
        zero_bytes=100,
        got_offset=4096,
        imports=("expf", "logf"),
        base_relocations=(8, 4112, 8192),
        exports=(("a", 15), ("entry", 0)),
    )
    payloads = [encode_image(one)[:-SUM_BYTES] for one in (linked, made)]
    newer = payloads[1][:8] + b"\2\0" + payloads[1][10:]
    return Decoder(
        name="image",
        payloads=payloads,
        seal=_summed,
        read=decode_image,
        write=encode_image,
        is_canonical=True,
        newer=_summed(newer),
        words=tuple(one.encode() + b"\0" for one in sorted(IMPORTABLE)[:8]),
    )


def _summed(body: bytes) -> bytes:
    return body + hashlib.sha256(body).digest()


def signatures(_: Path) -> Decoder:
    table = SignatureTable(
        "x86_64",
        "x86-64-v1",
        (
            KernelSignature(
                "scale",
                (BufferParameter(DType.F32, "read_write"),),
                (DType.U32, DType.F16),
                (64, 2, 1),
                shared_bytes=256,
            ),
        ),
    )
    return Decoder(
        name="signatures",
        payloads=[encode_signatures(table)],
        read=decode_signatures,
        write=encode_signatures,
        newer=encode_signatures(table).replace(b'"abi":1', b'"abi":2'),
        words=(*JSON, *named(DType)),
    )


def object_file(_: Path) -> Decoder:
    call = (1, 2, 1, -4)
    return Decoder(
        name="object",
        payloads=[text_object(b"\xe8\0\0\0\0\xc3", [call]), text_object(b"\xc3")],
        read=parse_object,
    )


def spirv(_: Path) -> Decoder:
    return Decoder(name="spirv", payloads=[assemble(ADD)], read=read_spirv)


def cuda_binary(_: Path) -> Decoder:
    binary = CudaBinary(
        format="cuda_ptx",
        architecture="sm_90",
        payload=".version 8.0",
        entries={"scale<float>": "_Z5scale"},
        log="a warning",
        compiler="NVRTC 13.0",
    )
    return Decoder(
        name="cuda_binary",
        payloads=[
            binary.to_bytes(),
            attrs.evolve(binary, format="cuda_cubin", payload=b"\x7fELF").to_bytes(),
        ],
        read=CudaBinary.from_bytes,
        write=CudaBinary.to_bytes,
        words=(*MESSAGE_PACK, *named(ArtifactFormat)),
    )
