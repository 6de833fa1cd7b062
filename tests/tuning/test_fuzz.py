"""The fuzzer finds its way into the decoders, and faults where there are some."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from accy_async.artifact.sealed import unseal
from accy_async.tuning.launches import LAUNCH_CODEC, LaunchTuningCacheRecord
from accy_async.tuning.records.binary import RecordReader
from accy_async.tuning.store import CODECS
from tools.fuzz_tuning import fuzz, main, samples


def payload(kind: str) -> bytes:
    """That of an artifact of one record."""
    return unseal(CODECS[kind].encode([samples()[kind]]), kind, "1")


PAYLOAD = payload(LAUNCH_CODEC.schema)


@pytest.mark.parametrize("kind", CODECS)
def test_no_decoder_has_a_fault_that_some_inputs_show(kind: str) -> None:
    report = fuzz(CODECS[kind], [payload(kind)], seconds=30.0, seed=3, most_inputs=400)
    assert report.faults == []
    assert report.read > 0
    assert report.kept > 10


def test_a_faulty_decoder_is_found_out() -> None:
    def read(reader: RecordReader) -> LaunchTuningCacheRecord:
        record = LAUNCH_CODEC.read(reader)
        if record.selection.candidate_index != 1:
            raise KeyError("a fault")
        return attrs.evolve(
            record, selection=attrs.evolve(record.selection, kernel_id=0)
        )

    faulty = attrs.evolve(LAUNCH_CODEC, read=read)
    report = fuzz(faulty, [PAYLOAD], seconds=30.0, seed=5, most_inputs=2000)
    kinds = {what.partition(":")[0] for _, what in report.faults}
    assert kinds <= {"KeyError", "written back as other bytes"}
    assert kinds


def test_the_program_tells_of_every_decoder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.bin").write_bytes(PAYLOAD)
    assert main(["--seconds", "0.5", "--corpus", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert all(f"{kind}: " in out for kind in CODECS)
    assert list(tmp_path.glob("fuzz-*")) == []
