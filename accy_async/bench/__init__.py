"""Benchmarks: what a file declares, measured and reported by ``accy-async bench``.

* `fragment_benchmark`, `FragmentBenchmark`: a tensor program, in one or several ways.
* `KernelBenchmark`: a kernel, in one or several ways, with its `Output` and `ReadWrite`
  buffers; `compile_variant` makes a candidate for any device.
* `load_benchmarks`, `BenchRun`, `Report`: the parts of the command, for programs.
"""

from accy_async.bench.comparing import Change, compare_reports, difference_of_devices
from accy_async.bench.declare import (
    Benchmark,
    FragmentBenchmark,
    FragmentVariant,
    KernelBenchmark,
    Output,
    ReadWrite,
    fragment_benchmark,
)
from accy_async.bench.loading import InvalidBenchmark, load_benchmarks
from accy_async.bench.making import compile_variant
from accy_async.bench.options import BenchOptions, Watcher
from accy_async.bench.picture import draw_benchmark
from accy_async.bench.report import (
    BenchmarkReport,
    CandidateReport,
    Ceiling,
    DeviceReport,
    Report,
    decode_report,
    encode_report,
)
from accy_async.bench.running import BenchRun, device_report
from accy_async.tuning.search import Variant

__all__ = [
    "BenchOptions",
    "BenchRun",
    "Benchmark",
    "BenchmarkReport",
    "CandidateReport",
    "Ceiling",
    "Change",
    "DeviceReport",
    "FragmentBenchmark",
    "FragmentVariant",
    "InvalidBenchmark",
    "KernelBenchmark",
    "Output",
    "ReadWrite",
    "Report",
    "Variant",
    "Watcher",
    "compare_reports",
    "compile_variant",
    "decode_report",
    "device_report",
    "difference_of_devices",
    "draw_benchmark",
    "encode_report",
    "fragment_benchmark",
    "load_benchmarks",
]
