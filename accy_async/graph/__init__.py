"""Launch graphs: plans of device and host work, and their running."""

from accy_async.graph.builder import LaunchGraphBuilder
from accy_async.graph.dataflow import dataflow_dependencies
from accy_async.graph.layout import BlockLayout, Item
from accy_async.graph.nodes import (
    BufferSlot,
    BufferUse,
    CopyBuffer,
    CopyFromDevice,
    CopyToDevice,
    EventSignal,
    EventWait,
    Fill,
    HostCall,
    HostSlot,
    KernelCall,
    LaunchGraphDependency,
    LaunchGraphLoop,
    LaunchGraphLoopCarry,
    LaunchGraphNode,
    Operation,
    RuntimeScalar,
)
from accy_async.graph.options import LaunchOptions, Lowering, OnError
from accy_async.graph.outcome import (
    HostCallFailed,
    NodeSkipped,
    NodeState,
    RunCancelled,
    RunStatistics,
)
from accy_async.graph.plan import LaunchGraphPlan
from accy_async.graph.refs import GraphBuffer, GraphHost, LoopRef, NodeRef
from accy_async.graph.replaying import PreparedPlan
from accy_async.graph.run import NodeHandle, Run

__all__ = [
    "BlockLayout",
    "BufferSlot",
    "BufferUse",
    "CopyBuffer",
    "CopyFromDevice",
    "CopyToDevice",
    "EventSignal",
    "EventWait",
    "Fill",
    "GraphBuffer",
    "GraphHost",
    "HostCall",
    "HostCallFailed",
    "HostSlot",
    "Item",
    "KernelCall",
    "LaunchGraphBuilder",
    "LaunchGraphDependency",
    "LaunchGraphLoop",
    "LaunchGraphLoopCarry",
    "LaunchGraphNode",
    "LaunchGraphPlan",
    "LaunchOptions",
    "LoopRef",
    "Lowering",
    "NodeHandle",
    "NodeRef",
    "NodeSkipped",
    "NodeState",
    "OnError",
    "Operation",
    "PreparedPlan",
    "Run",
    "RunCancelled",
    "RunStatistics",
    "RuntimeScalar",
    "dataflow_dependencies",
]
