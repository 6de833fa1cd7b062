"""One session over several devices.

It has a *seat* on each: a session of its own for that device alone, with the streams,
the kernels and the runs of it. What is asked of the whole finds its seat by where the
data lie, or by a policy. Runs whose nodes are on several devices are the whole's.
"""

from accy_async.session.multi.session import MultiSession

__all__ = ["MultiSession"]
