"""Lowering: a plan that runs again becomes one graph of the device.

`outline` says what a plan comes to as one graph, purely; `binding` gives it buffers;
`lowered` owns the device graph; `policy` decides when; `replay` runs it.
"""

from accy_async.graph.lowering.lowered import LoweredGraph
from accy_async.graph.lowering.obstacle import Obstacle
from accy_async.graph.lowering.outline import Outline, OutlineNode, outline
from accy_async.graph.lowering.policy import lower
from accy_async.graph.lowering.replay import replay
from accy_async.graph.lowering.report import lowering_report, obstacles

__all__ = [
    "LoweredGraph",
    "Obstacle",
    "Outline",
    "OutlineNode",
    "lower",
    "lowering_report",
    "obstacles",
    "outline",
    "replay",
]
