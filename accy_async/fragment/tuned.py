"""Launch tuning of a loaded fragment: candidates measured, recorded, and used.

A fragment has the records that it was loaded with, and those that came since. They say
which launch candidate each kernel takes where the caller names none. Whenever records
change, the fragment's graph is made anew: what begins after that launches the new
candidates, what had begun keeps those that it began with.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from accy_async.artifact.entry import ElementCountArgument
from accy_async.dtypes import ScalarArgument
from accy_async.errors import InvalidType, LaunchArgumentMismatch
from accy_async.fragment.bindings import check_bindings_given
from accy_async.fragment.stepping import SteppedFragment
from accy_async.tuning.launches import (
    LaunchCandidateBenchmarkOptions,
    LaunchCandidateRecord,
    LaunchTuningCache,
    LaunchTuningCacheKey,
    LaunchTuningCacheRecord,
    is_tunable,
    launch_candidate_record,
    measure_launch_candidates,
)
from accy_async.values import listed

if TYPE_CHECKING:
    from accy_async.artifact.planned import PlannedKernel
    from accy_async.backends.handles import LoadedArtifact
    from accy_async.fragment.bindings import InvocationBindings

__all__ = ["TunedFragment"]

_AS_USUAL = LaunchCandidateBenchmarkOptions()


class TunedFragment(SteppedFragment):
    """A fragment that learns how its kernels are best launched."""

    @property
    def tunable_kernels(self) -> tuple[int, ...]:
        """The kernels, by index, that there is more than one way to launch."""
        return tuple(
            index for index, one in enumerate(self.plan.kernels) if is_tunable(one)
        )

    def launch_tuning_record(self, kernel_index: int) -> LaunchTuningCacheRecord | None:
        """The record that says how a kernel is launched; None where there is none.

        Raises:
            InvalidArtifact: there is no such kernel.
        """
        return self._tuning.record_of(self.plan.kernel(kernel_index))

    def launch_tuning_key(self, kernel_index: int) -> LaunchTuningCacheKey:
        """What a kernel's winner is kept under on this device.

        Raises:
            InvalidArtifact: there is no such kernel.
        """
        return self._tuning.key(self.plan.kernel(kernel_index))

    # Measuring

    async def measure_invocation_launch_candidates(
        self,
        kernel_index: int,
        bindings: InvocationBindings,
        options: LaunchCandidateBenchmarkOptions = _AS_USUAL,
    ) -> tuple[LaunchCandidateRecord, ...]:
        """Launch each of a kernel's candidates with bindings; awaits every launch.

        What the kernel only writes is written; what it reads and writes has its
        contents again afterwards. For a choice that can be trusted, beside real work,
        see `Session.tuning`.

        Args:
            kernel_index: which kernel.
            bindings: from `prepare_invocation_bindings`; not in use otherwise.
            options: how often, on which stream, and the graph's runtime scalars.

        Returns:
            A record of each candidate, in their order, with the median of its samples;
            none where there is only one candidate, or no work.

        Raises:
            InvalidArtifact: there is no such kernel.
            LaunchArgumentMismatch: the bindings are closed, or the scalars are not
                the graph's; or a candidate does not fit.
            CapabilityMismatch: a candidate is beyond the device's limits.
            DeviceError: one failed.
            SessionClosed: the fragment was closed.

        Cancellation: what was launched is awaited for the grace at most; nothing that
            was opened for it is left.
        """
        self._check("measure_invocation_launch_candidates")
        kernel = self.plan.kernel(kernel_index)
        check_bindings_given("bindings", bindings, self.plan)
        if not isinstance(options, LaunchCandidateBenchmarkOptions):
            raise InvalidType("options", options, "LaunchCandidateBenchmarkOptions")
        scalars = self.scalars_for_kernel(
            kernel_index, options.base_options.runtime_scalars
        )
        measured = await measure_launch_candidates(
            self._backend,
            kernel,
            self._loaded[kernel_index].loaded,
            bindings.buffers_for_kernel(kernel_index),
            scalars,
            options,
        )
        return tuple(
            launch_candidate_record(
                kernel, kernel.launch_resources.candidate(one.candidate_index), one
            )
            for one in measured
        )

    async def measure_and_record_invocation_launch_candidates(
        self,
        bindings: InvocationBindings,
        options: LaunchCandidateBenchmarkOptions = _AS_USUAL,
    ) -> tuple[LaunchCandidateRecord, ...]:
        """The same for every kernel, and `record_launch_candidate_records` of it all.

        Kernels with a single candidate are passed over.

        Returns:
            The records, kernel by kernel.

        Raises, Cancellation: as `measure_invocation_launch_candidates`; nothing was
            recorded then.
        """
        records: list[LaunchCandidateRecord] = []
        self._check("measure_and_record_invocation_launch_candidates")
        for index in self.tunable_kernels:
            records += await self.measure_invocation_launch_candidates(
                index, bindings, options
            )
        self.record_launch_candidate_records(records)
        return tuple(records)

    def scalars_for_kernel(
        self, kernel_index: int, runtime_scalars: Sequence[ScalarArgument] = ()
    ) -> tuple[ScalarArgument, ...]:
        """All scalars of a kernel, as `launch_kernel_with_arguments` takes them.

        Args:
            kernel_index: which kernel.
            runtime_scalars: the graph's, for the kernels that have no defaults.

        Raises:
            InvalidArtifact: there is no such kernel.
            LaunchArgumentMismatch: they are more or fewer than the graph takes.
        """
        kernel = self.plan.kernel(kernel_index)
        runtime_scalars = listed("runtime_scalars", runtime_scalars, "a list")
        takers = [k for k in self.plan.kernels if not k.runtime_scalar_defaults]
        wanted = sum(k.runtime_scalar_argument_count for k in takers)
        if len(runtime_scalars) != wanted:
            raise LaunchArgumentMismatch(
                f"{self.name!r}: {len(runtime_scalars)} runtime scalars were given, "
                f"its graph takes {wanted}"
            )
        own = kernel.runtime_scalar_defaults
        if not own:
            first = sum(
                k.runtime_scalar_argument_count
                for k in takers
                if k.kernel_id < kernel.kernel_id
            )
            last = first + kernel.runtime_scalar_argument_count
            own = tuple(runtime_scalars[first:last])
        counted = kernel.element_count_argument is ElementCountArgument.SCALAR_U32
        count = (ScalarArgument.u32(kernel.element_count),) if counted else ()
        return (*count, *own, *kernel.static_arguments)

    # Records

    def record_launch_candidate_records(
        self, records: Iterable[LaunchCandidateRecord]
    ) -> tuple[LaunchTuningCacheRecord, ...]:
        """Keep the fastest measured candidate of each kernel, and use it from now on.

        A slower one than is known already changes nothing. Sync.

        Returns:
            What they come to: a record for each kernel of which there are some.

        Raises:
            InvalidType: one is no record; nothing changed.
            LaunchArgumentMismatch: one is not of a kernel as it is here, which is
                named with what differs; nothing changed.
        """
        what = "record_launch_candidate_records.records"
        given = listed(what, records, "a list of records")
        for place, record in enumerate(given):
            if not isinstance(record, LaunchCandidateRecord):
                raise InvalidType(f"{what}[{place}]", record, "a LaunchCandidateRecord")
        found = self._tuning.record_all(self.plan.kernels, given)
        self._refresh()
        return found

    def prefer_launch_candidate(
        self, kernel_index: int, candidate_index: int | None
    ) -> None:
        """Launch a kernel so from now on, where no record says otherwise. Sync.

        For a winner whose time is none to keep, as it was measured on a machine that
        did not hold still. It is no record, and is not exported.

        Args:
            kernel_index: which kernel.
            candidate_index: which of its candidates; None to forget it again.

        Raises:
            InvalidArtifact: there is no such kernel.
            LaunchArgumentMismatch: it has no such candidate.
        """
        kernel = self.plan.kernel(kernel_index)
        if candidate_index is None:
            self._preferred.pop(kernel.kernel_id, None)
        else:
            kernel.launch_resources.candidate(candidate_index)
            self._preferred[kernel.kernel_id] = candidate_index
        self._refresh()

    def learn_launch_tuning(self, cache: LaunchTuningCache) -> None:
        """Take in what a cache knows of just these kernels, and use it from now on."""
        if not isinstance(cache, LaunchTuningCache):
            raise InvalidType("learn_launch_tuning.cache", cache, "a LaunchTuningCache")
        found = [cache.record_of(kernel) for kernel in self.plan.kernels]
        self._tuning.import_records(one for one in found if one is not None)
        self._refresh()

    def import_launch_tuning_artifact(self, artifact: bytes) -> int:
        """Take records in, and use them from now on; of two the better one stays.

        Those of other devices and kernels are kept, not used. Sync.

        Returns:
            How many it has.

        Raises:
            InvalidArtifact: it cannot be read; nothing changed.
        """
        count = self._tuning.import_artifact(artifact)
        self._refresh()
        return count

    def replace_launch_tuning_artifact(self, artifact: bytes) -> int:
        """Forget every record, and take in these; no bytes are none. Sync.

        Returns:
            How many it has.

        Raises:
            InvalidArtifact: it cannot be read; nothing changed.
        """
        count = self._tuning.replace_artifact(artifact)
        self._refresh()
        return count

    def export_launch_tuning_artifact(self) -> bytes:
        """All records, for `import_launch_tuning_artifact` of any fragment."""
        return self._tuning.export_artifact()

    def forget_launch_tuning(self, kernel_index: int) -> bool:
        """Drop a kernel's record, as of a winner that fails; True if there was one.

        Raises:
            InvalidArtifact: there is no such kernel.
        """
        is_known = self._tuning.forget(self.plan.kernel(kernel_index))
        if is_known:
            self._refresh()
        return is_known

    def loaded_kernel(self, index: int) -> tuple[PlannedKernel, LoadedArtifact]:
        """A kernel, and itself as the device has it.

        Raises:
            InvalidArtifact: there is no such kernel.
            SessionClosed: the fragment was closed.
        """
        self._check("loaded_kernel")
        return self.plan.kernel(index), self._loaded[index].loaded

    def _refresh(self) -> None:
        """Make the graph anew, where the records choose otherwise now."""
        chosen = self._recorded_candidates()
        if chosen == self._chosen:
            return
        self._chosen = chosen
        self._graph = self.create_launch_graph_plan()
        self._graph_changed()

    def _graph_changed(self) -> None:
        """What follows where the graph is another one."""
