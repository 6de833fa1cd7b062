"""Large plans keep the collector off the event loop, and leave it as it was."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest

from accy_async.graph.slices import without_pauses

LARGE = 100_000


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Put the collector and the interpreter back."""
    was_enabled, thresholds = gc.isenabled(), gc.get_threshold()
    switch_s = sys.getswitchinterval()
    yield
    gc.set_threshold(*thresholds)
    sys.setswitchinterval(switch_s)
    if was_enabled:
        gc.enable()
    else:
        gc.disable()


def test_the_collector_rests_meanwhile() -> None:
    """Nested or not; small plans leave it alone."""
    before = gc.get_threshold()
    with without_pauses(10):
        assert gc.get_threshold() == before
    with without_pauses(LARGE):
        with without_pauses(LARGE):
            assert gc.get_threshold()[0] == 0
        assert gc.get_threshold()[0] == 0
    assert gc.get_threshold() == before
    assert gc.isenabled()


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_collector_that_the_program_disabled_stays_so(when: str) -> None:
    """It is the program's affair, whenever it did so."""
    if when == "before":
        gc.disable()
    with without_pauses(LARGE):
        gc.disable()
    assert not gc.isenabled()


def test_what_the_program_sets_meanwhile_stays() -> None:
    """Its thresholds, and how often threads take turns."""
    with without_pauses(LARGE):
        gc.set_threshold(123, 4, 5)
        sys.setswitchinterval(0.25)
    assert gc.get_threshold()[:2] == (123, 4)
    assert sys.getswitchinterval() == pytest.approx(0.25)


def test_an_error_puts_it_back_too() -> None:
    """Whatever ends the preparing."""
    before = gc.get_threshold(), sys.getswitchinterval()
    with pytest.raises(ValueError, match="no plan"), without_pauses(LARGE):
        raise ValueError("no plan")
    assert (gc.get_threshold(), sys.getswitchinterval()) == before
