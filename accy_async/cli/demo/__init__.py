"""``accy-async demo``: a pipeline run natively, checked, cancelled, cleaned up.

`source` makes or reads the values, `run` does the work, `check` judges its
results, `outcome` is what is known afterwards, and `report` shows that. None of
them but the last knows a terminal.
"""

from accy_async.cli.demo.outcome import DemoOptions, DemoOutcome
from accy_async.cli.demo.run import run_demo

__all__ = ["DemoOptions", "DemoOutcome", "run_demo"]
