"""Reports: to JSON and back, against earlier ones, and as pictures."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accy_async.bench import (
    BenchmarkReport,
    CandidateReport,
    Ceiling,
    compare_reports,
    decode_report,
    difference_of_devices,
    draw_benchmark,
    encode_report,
)
from accy_async.errors import InvalidArtifact
from accy_async.tuning import Standing
from tests.bench.files import DEVICE, candidate, report

SVG = "{http://www.w3.org/2000/svg}"


def encoded() -> bytes:
    return json.dumps(encode_report(report(candidate("a", 1000.0)))).encode()


def test_a_report_survives_json() -> None:
    found = decode_report(encoded())
    assert found == report(candidate("a", 1000.0))
    assert found.ceiling("copy") is not None
    assert found.benchmark("none") is None


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no report"),
        (b"[]", "no report"),
        (b"{}", "no report"),
        (encoded()[:-2], "no report"),
        (encoded().replace(b'"version": 1', b'"version": 2'), "version 2, expected"),
        (encoded().replace(b'"times_ns": [', b'"times_ns": ["x", '), "times_ns"),
        (encoded().replace(b'"times_ns": [', b'"times_ns": [-1.0, '), "1e-06 to 1e"),
        (encoded().replace(b'"times_ns": [', b'"times_ns": [1e308, '), "got 1e.308"),
        (encoded().replace(b'"times_ns": [', b'"times_ns": [1e-300, '), "got 1e-300"),
        (encoded().replace(b'"times_ns": [', b'"times_ns": [1e999, '), "no report"),
        (b'{"format":' * 100_000, "no report"),
    ],
)
def test_what_is_no_report_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(InvalidArtifact, match=words):
        decode_report(data)


@given(st.integers(0, 10_000), st.integers(0, 255))
@settings(max_examples=60, deadline=None)
def test_damaged_reports_are_refused_or_read_and_nothing_else(
    place: int, byte: int
) -> None:
    data = bytearray(encoded())
    data[place % len(data)] = byte
    try:
        found = decode_report(bytes(data))
    except InvalidArtifact:
        return
    compare_reports(found, report(candidate("a", 1000.0)))


def test_changes_are_told_with_their_bounds() -> None:
    old = report(candidate("a", 1000.0), candidate("b", 1000.0), candidate("c", 9.0))
    new = report(
        candidate("a", 900.0, 1), candidate("b", 1000.0, 2), candidate("d", 1.0)
    )
    first, second = compare_reports(new, old)
    assert (first.candidate, first.standing) == ("a", Standing.FASTER)
    assert first.low < 0.9 < first.high
    assert (second.candidate, second.standing) == ("b", Standing.NO_DIFFERENCE)
    assert second.ratio == pytest.approx(1.0, abs=0.005)
    (slower,) = compare_reports(
        report(candidate("a", 1100.0, 1)), report(candidate("a", 1000.0))
    )
    assert slower.standing is Standing.SLOWER
    wild = attrs.evolve(candidate("a", 1000.0), times_ns=(500.0, 1000.0, 2000.0))
    (unknown,) = compare_reports(report(wild), report(candidate("a", 1000.0)))
    assert unknown.standing is Standing.UNDECIDED


def test_devices_differ_by_their_chip_and_not_by_their_driver() -> None:
    assert difference_of_devices(DEVICE, attrs.evolve(DEVICE, driver="12.0")) is None
    assert difference_of_devices(DEVICE, attrs.evolve(DEVICE, name="sold as")) is None
    other = attrs.evolve(DEVICE, fingerprint="0" * 16, name="another", compute_units=8)
    told = difference_of_devices(DEVICE, other)
    assert told is not None
    assert "another (sm_90, 8 units), this is cuda a card" in told


# Pictures


def drawn(benchmark: BenchmarkReport, *ceilings: Ceiling) -> ET.Element:
    return ET.fromstring(draw_benchmark(benchmark, ceilings))


def test_a_picture_has_a_row_for_each_candidate_and_a_dot_for_each_sample() -> None:
    benchmark = report(
        candidate("a", 1000.0),
        candidate("<b&\x07", 1100.0),
        CandidateReport(name="c", status="failed", reason="no registers left"),
    ).benchmarks[0]
    root = drawn(benchmark)
    assert len(root.findall(f".//{SVG}circle")) >= 30
    texts = [one.text or "" for one in root.iter(f"{SVG}text")]
    assert {"a", "failed: no registers left"} <= set(texts)
    assert any(text.startswith("<b&") for text in texts)
    assert "softmax" in texts
    (title,) = root.findall(f"{SVG}title")
    assert title.text is not None
    assert "a 1 µs" in title.text
    best = [one for one in root.iter(f"{SVG}g") if one.get("class") == "best"]
    assert len(best) == 1
    assert "prefers-color-scheme: dark" in draw_benchmark(benchmark)


def test_ceilings_are_drawn_where_they_are_near_and_told_where_they_are_not() -> None:
    benchmark = report(candidate("a", 1000.0)).benchmarks[0]
    near = Ceiling(name="copy", unit="B/s", value=1.2e12, low=1e12, high=1e12)
    root = drawn(benchmark, near)
    (line,) = [one for one in root.iter(f"{SVG}line") if one.get("class") == "ceiling"]
    medians = [one for one in root.iter(f"{SVG}line") if one.get("class") == "median"]
    assert float(line.get("x1", 0)) < float(medians[0].get("x1", 0))
    far = attrs.evolve(near, value=1e15)
    texts = [one.text for one in drawn(benchmark, far).iter(f"{SVG}text")]
    assert "softmax, copy ceiling at 1 ns" in texts


def test_late_samples_are_counted_and_do_not_squeeze_the_others() -> None:
    wild = attrs.evolve(
        candidate("a", 1000.0), times_ns=(*candidate("a", 1000.0).times_ns, 1e9)
    )
    root = drawn(report(wild).benchmarks[0])
    assert "1 later" in [one.text for one in root.iter(f"{SVG}text")]
    dots = [float(one.get("cx", 0)) for one in root.iter(f"{SVG}circle")]
    assert max(dots) - min(dots) > 100


def test_a_picture_of_nothing_is_a_picture() -> None:
    nothing = CandidateReport(name="a", status="failed", reason="r" * 500)
    assert len(drawn(report(nothing).benchmarks[0]).findall(f".//{SVG}circle")) == 0
    one = attrs.evolve(candidate("a", 5.0), times_ns=(5.0,), low_ns=5.0, high_ns=5.0)
    assert len(drawn(report(one).benchmarks[0]).findall(f".//{SVG}circle")) == 1
    assert draw_benchmark(report(one).benchmarks[0]) == draw_benchmark(
        report(one).benchmarks[0]
    )
