"""Every decoder of bytes: what is damaged or newer is refused, and nothing is lost."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accy_async.errors import InvalidArtifact
from tools import fuzz as program
from tools.decoder import Decoder
from tools.decoders import DECODERS, SEALED
from tools.fuzz import fuzz, main


@pytest.fixture(params=DECODERS)
def decoder(request: pytest.FixtureRequest, tmp_path: Path) -> Decoder:
    return DECODERS[request.param](tmp_path)


def test_samples_are_read_and_written_back(decoder: Decoder) -> None:
    for payload in decoder.payloads:
        data = decoder.seal(payload)
        found = decoder.read(data)
        if decoder.write is not None:
            assert decoder.write(found) == data


def test_no_decoder_has_a_fault_that_some_inputs_show(decoder: Decoder) -> None:
    report = fuzz(decoder, seconds=30.0, seed=3, most_inputs=100)
    assert report.faults == []
    assert report.inputs == 100
    assert report.read > 0
    assert report.kept > 0


@pytest.mark.parametrize(
    "decoder", [name for name in SEALED if not name.startswith("store")], indirect=True
)
def test_every_flipped_bit_and_every_cut_is_refused(decoder: Decoder) -> None:
    """Those of a store's files are in `tests.artifact.test_store`."""
    whole = decoder.seal(decoder.payloads[-1])
    before = decoder.state()
    for bit in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(InvalidArtifact):
            decoder.read(bytes(damaged))
    for size in range(len(whole)):
        with pytest.raises(InvalidArtifact):
            decoder.read(whole[:size])
    with pytest.raises(InvalidArtifact):
        decoder.read(whole + b"\0")
    assert decoder.state() == before


@functools.cache
def made(name: str) -> Decoder:
    return DECODERS[name](Path("unused"))


@pytest.mark.parametrize("name", [one for one in DECODERS if one[:5] != "store"])
@settings(max_examples=60, deadline=None)
@given(
    nonsense=st.binary(max_size=120),
    splices=st.lists(
        st.tuples(st.integers(0, 1500), st.integers(0, 9), st.binary(max_size=9)),
        max_size=3,
    ),
)
def test_whole_bytes_of_nonsense_are_refused_or_read_as_what_is_written(
    name: str, nonsense: bytes, splices: list[tuple[int, int, bytes]]
) -> None:
    """Bytes of any kind, and a sample with some places changed; both sealed."""
    decoder = made(name)
    changed = bytearray(decoder.payloads[-1])
    for at, size, new in splices:
        at %= len(changed) + 1
        changed[at : at + size] = new
    for payload in (nonsense, bytes(changed)):
        data, before = decoder.seal(payload), decoder.state()
        try:
            found = decoder.read(data)
        except decoder.refusal:
            assert decoder.state() == before
            continue
        if decoder.write is not None:
            written = decoder.write(found)
            assert written == data or not decoder.is_canonical
            assert decoder.write(decoder.read(written)) == written


@pytest.mark.parametrize("decoder", [*SEALED, "signatures", "report"], indirect=True)
def test_a_newer_version_is_refused_by_name(decoder: Decoder) -> None:
    before = decoder.state()
    with pytest.raises(InvalidArtifact) as raised:
        decoder.read(decoder.newer)
    assert decoder.state() == before
    if decoder.name != "store_file":  # which is a miss, as if it were not there
        assert "version" in str(raised.value)


# The fuzzer itself


def plain(**more: Any) -> Decoder:
    """A decoder of three digits that has no fault."""

    def read(data: bytes) -> bytes:
        if len(data) != 3 or not data.isdigit():
            raise InvalidArtifact("no digits")
        return data

    given: dict[str, Any] = {"read": read, "write": bytes, "is_canonical": True, **more}
    return Decoder(name="plain", payloads=[b"123"], **given)


def crashing(data: bytes) -> bytes:
    return data[: 10000 // len(data)]


def hanging(data: bytes) -> bytes:
    while data != b"123":
        pass
    return data


CHANGED: list[bytes] = []


def changing(data: bytes) -> bytes:
    CHANGED.append(data)
    raise InvalidArtifact("too late")


@pytest.mark.parametrize(
    ("decoder", "fault"),
    [
        (plain(), None),
        (plain(read=crashing), "ZeroDivisionError: "),
        (plain(read=hanging), "not done in 0.01 s"),
        (plain(read=bytes, write=bytes.upper), "written back as other bytes"),
        (
            plain(read=bytes, write=lambda data: data + b"0", is_canonical=False),
            "read as something else",
        ),
        (plain(read=changing, state=lambda: len(CHANGED)), "refused, and changed"),
    ],
    ids=["sound", "crash", "hang", "other", "unstable", "state"],
)
def test_a_fault_is_found_out(
    decoder: Decoder, fault: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "_MOST_S", 0.01)
    monkeypatch.setattr(program, "_MOST_FAULTS", 6)
    report = fuzz(decoder, seconds=30.0, seed=5, most_inputs=300)
    assert len(report.faults) <= 6
    assert (
        any(fault in what for _, what in report.faults) if fault else not report.faults
    )


def test_the_program_tells_of_every_decoder_and_keeps_what_shows_a_fault(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "one.bin").write_bytes(b"456")
    monkeypatch.setattr(program, "DECODERS", {"plain": lambda _: plain()})
    assert main(["--seconds", "0.05", "--corpus", str(corpus)]) == 0
    assert capsys.readouterr().out.startswith("plain: ")
    assert list(tmp_path.glob("fuzz-*")) == []
    faulty = plain(read=crashing)
    monkeypatch.setattr(program, "DECODERS", {"plain": lambda _: faulty})
    assert main(["--seconds", "5", "--decoder", "plain"]) == 1
    assert "fuzz-plain-0.bin: " in capsys.readouterr().out
    with pytest.raises(ZeroDivisionError):
        crashing((tmp_path / "fuzz-plain-0.bin").read_bytes())
