"""Launches: checked, packed, submitted."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, cast
from weakref import ref

from accy_async.backends.contract.core import BackendCore, admit
from accy_async.backends.handles import StreamHandle
from accy_async.backends.launch import (
    NEVER,
    ONCE,
    BoundLaunch,
    LaunchRequest,
    PreparedLaunch,
    refuse_foreign,
)
from accy_async.backends.launcher import GeneralLauncher
from accy_async.backends.resources import Use, refuse_destroyed
from accy_async.errors import InvalidType

if TYPE_CHECKING:
    from accy_async.backends.base import Backend
    from accy_async.backends.guards import Guard
    from accy_async.backends.handles import BufferBinding
    from accy_async.backends.hooks import StreamState
    from accy_async.backends.launcher import Launcher
    from accy_async.dtypes import ScalarArgument

__all__ = ["Launches"]

_REQUESTS_KEPT = 256
"""Requests that are known again, of those that somebody holds."""

_STREAMS_KEPT = 16
"""Streams that a prepared launch keeps what it knows of."""


class Launches(BackendCore):
    """Kernel launches on one device."""

    def launch(self, request: LaunchRequest) -> int:
        """Submit a kernel to its stream. A grid of no blocks is a no-op.

        A request that is launched again is prepared then, and from there on as good as
        a prepared launch, for as long as somebody else holds it and not too many
        others come. It is the value itself that is known again, not an equal one.

        Returns:
            Its position on the stream's timeline; the last one's for a no-op.

        Raises:
            LaunchArgumentMismatch: the arguments are not the kernel's.
            CapabilityMismatch: the geometry is beyond the device's limits.
            InvalidArtifact, InvalidBuffer, InvalidStream: a handle is not alive.
        """
        with self._lock:
            found = self._table.kept.get(id(request))
            if found is None or found[0]() is not request:
                return self._launch_new(request)
            prepared = found[1]
            if prepared is None:
                prepared = self._prepare_kept(request, found[0])
            try:
                return self.submit_launch(prepared, request.stream)
            except BaseException:  # what was destroyed need not be held any longer
                self._table.kept.pop(id(request), None)
                raise

    def _launch_new(self, request: LaunchRequest) -> int:
        """Launch what was not launched before, and note that it was; under the lock.

        Raises:
            As `launch`.
        """
        prepared = self.prepare_launch(request)
        position = self.submit_launch(prepared, request.stream)
        kept = self._table.kept
        if len(kept) >= _REQUESTS_KEPT:
            kept.clear()
        key = id(request)
        kept[key] = ref(request, partial(kept.pop, key)), None
        return position

    def _prepare_kept(
        self, request: LaunchRequest, weak: ref[LaunchRequest]
    ) -> PreparedLaunch:
        """Prepare what was launched once before, and keep that; under the lock.

        Without the request, so that it goes, and with it this, once nobody else holds
        it, and without what owns its buffers.

        Raises:
            As `prepare_launch`.
        """
        prepared = self.prepare_launch(request.without_owners())
        prepared.bound = ONCE
        self._table.kept[id(request)] = weak, prepared
        return prepared

    def prepare_launch(self, request: LaunchRequest) -> PreparedLaunch:
        """Check and pack a launch once, to submit it many times.

        Raises:
            LaunchArgumentMismatch, CapabilityMismatch, InvalidArtifact,
            InvalidBuffer: as for `launch`.
        """
        self._check("launch")
        if not isinstance(request, LaunchRequest):
            raise InvalidType("launch", request, "a LaunchRequest")
        request.check_counts()
        self.capabilities.check_geometry(request.geometry, request.artifact.kernel_name)
        with self._lock:
            artifact = self._find_for_launch(request.loaded)
            buffers = [self._find_for_launch(b.handle) for b in request.buffers]
            payload = self._prepare(request, artifact, buffers)
        return PreparedLaunch(request, artifact, buffers, payload, self._table)

    def renew_launch(
        self,
        prepared: PreparedLaunch,
        buffers: tuple[BufferBinding, ...],
        scalars: tuple[ScalarArgument, ...],
    ) -> PreparedLaunch:
        """A launch like a prepared one, with other buffers and scalars.

        As many as that one has, of the same dtypes: what was checked for it and does
        not change is not checked again. That one stays as it is.

        Raises:
            InvalidBuffer: a buffer is not alive.
            InvalidArtifact: another backend prepared the launch.
        """
        request = prepared.request.with_arguments(buffers, scalars)
        with self._lock:
            self._check("launch")
            if prepared.owner is not self._table:
                refuse_foreign(prepared, self._origin.title)
            found = [self._find_for_launch(binding.handle) for binding in buffers]
            payload = self._prepare_again(prepared, request, found)
        return prepared.renewed(request, found, payload)

    def bind_launch(self, request: LaunchRequest) -> Launcher:
        """Bind a kernel to its arguments and its stream, to launch it again and again.

        The quickest way to launch: ``submit = backend.bind_launch(request).submit``
        makes a function of no arguments, ``run`` one whose end is awaited, and the
        launcher changes single arguments in between.

        Raises:
            LaunchArgumentMismatch, CapabilityMismatch, InvalidArtifact,
            InvalidBuffer, InvalidStream: as for `launch`.
        """
        with self._lock:
            self._stream(request.stream)
            return GeneralLauncher(cast("Backend", self), request)

    def submit_launch(
        self,
        prepared: PreparedLaunch,
        stream: StreamHandle | None = None,
        guard: Guard | None = None,
    ) -> int:
        """Submit a prepared launch to a stream.

        From the second time on one stream, what it needs is known: as long as
        nothing at all was destroyed, it costs one comparison, one store for all its
        objects, and the device's own call.

        Args:
            prepared: what `prepare_launch` gave.
            stream: where it runs; None for the default stream.
            guard: asked before, and told of its failure; see `guards`.

        Returns:
            Its position on the stream's timeline; the last one's for a no-op.

        Raises:
            InvalidArtifact, InvalidBuffer, InvalidStream: something that it uses
                is not alive any more.
        """
        with self._lock:
            bound = prepared.bound
            use = bound.use
            if bound.handle is not stream or use.epoch is not self._table.epoch:
                if not prepared.has_blocks:
                    return self._submit_nothing(prepared, stream)
                bound = self._bind(prepared, stream)
                use = bound.use
            timeline = use.timeline
            timeline.submitted = use.position = position = timeline.submitted + 1
            self._launch(bound.stream, position, prepared, guard)
        return position

    def submit_launches(
        self, launches: Sequence[PreparedLaunch], stream: StreamHandle | None = None
    ) -> None:
        """Submit prepared launches in order, all of them or none.

        Raises:
            InvalidArtifact, InvalidBuffer, InvalidStream: something that one of
                them uses is not alive any more; none was submitted.
        """
        with self._lock:
            epoch = self._table.epoch
            for prepared in launches:
                bound = prepared.bound
                if bound.handle is not stream or bound.use.epoch is not epoch:
                    self._check_alive(prepared)
                    self._stream(stream)
            launch = self._launch
            for prepared in launches:
                bound = prepared.bound
                if bound.handle is not stream or bound.use.epoch is not epoch:
                    if not prepared.has_blocks:
                        continue
                    bound = self._bind(prepared, stream)
                use = bound.use
                timeline = use.timeline
                timeline.submitted = use.position = position = timeline.submitted + 1
                launch(bound.stream, position, prepared, None)

    def _submit_nothing(
        self, prepared: PreparedLaunch, stream: StreamHandle | None
    ) -> int:
        """Check a launch of no blocks like any other."""
        self._check_alive(prepared)
        return self._stream(stream).timeline.submitted

    def _bind(
        self, prepared: PreparedLaunch, stream: StreamHandle | None
    ) -> BoundLaunch:
        """Check a launch, and have its objects in use at the stream's next position.

        Raises:
            As `submit_launch`.
        """
        epoch = self._table.epoch  # before the checks: losing takes no lock
        self._check_alive(prepared)
        state = self._stream(stream)
        admit(state, prepared.resources)
        bound = prepared.bound
        if bound is NEVER:
            prepared.bound = ONCE
            position = state.timeline.submitted + 1
            for resource in prepared.resources:
                resource.touch(state.timeline, position)
            return BoundLaunch(stream, state, Use(state.timeline))
        if bound.stream is not state:
            bound = _on_stream(prepared, state)
        bound.handle = stream
        self._register(prepared, bound.use, epoch)
        prepared.bound = bound
        return bound

    def _renew(
        self,
        prepared: PreparedLaunch,
        stream: StreamHandle | None,
        use: Use,
    ) -> None:
        """Check a launcher's launch in a new epoch; under the lock.

        Raises:
            As `submit_launch`.
        """
        epoch = self._table.epoch  # before the checks: losing takes no lock
        self._check_alive(prepared)
        admit(self._stream(stream), prepared.resources)
        self._register(prepared, use, epoch)

    def _register(self, prepared: PreparedLaunch, use: Use, epoch: object) -> None:
        """Have what a launch uses follow its use; it was in order in this epoch."""
        if use.epoch is None:
            for resource in prepared.resources:
                resource.share(use)
        use.epoch = epoch

    def _check_alive(self, prepared: PreparedLaunch) -> None:
        self._check("launch")
        if prepared.owner is not self._table:
            refuse_foreign(prepared, self._origin.title)
        for resource in prepared.resources:
            if not resource.is_alive:
                refuse_destroyed(resource)


def _on_stream(prepared: PreparedLaunch, state: StreamState) -> BoundLaunch:
    """The launch on this stream, as it was before or new."""
    if prepared.bound is ONCE:
        return BoundLaunch(None, state, Use(state.timeline))
    if prepared.others is None:
        prepared.others = {prepared.bound.stream: prepared.bound}
    found = prepared.others.get(state)
    if found is None:
        if len(prepared.others) >= _STREAMS_KEPT:
            prepared.others.clear()
        found = prepared.others[state] = BoundLaunch(None, state, Use(state.timeline))
    return found
