"""In which phase of a step a training loop is, from what was seen of it. Pure.

::

    data ──► forward ──► backward ──► exposed ──► outside ──► optimizer ──► outside
                                                            │
                                                      the step ends

The step ends as the optimizer begins, after all backward passes of it, so that passes which only
accumulate gradients belong to the step that exchanges them. A phase may interrupt another one, such
as a wait for other ranks in the forward pass of a sharded model; then that goes on.
"""

from __future__ import annotations

from typing import Protocol

OUTSIDE, DATA, FORWARD, BACKWARD, OPTIMIZER, EXPOSED = range(6)


class Timer(Protocol):
    """Is told the phases; see ``ddprun/c/c_timer.h``."""

    def enter(self, phase: int) -> None:
        """End the phase, and begin another one."""

    def end_step(self, size: int) -> None:
        """End the step, in which ranks have exchanged `size` bytes of gradients."""


class Steps:
    """Of one loop. One thread at a time."""

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self._phase = OUTSIDE
        self._backwards = 0
        self._optimizers = 0
        self._has_gradients = False
        self.gradient_bytes = 0
        # Whether the model reports when its forward pass begins. If not, it begins with the data.
        self.knows_forward = False

    @property
    def phase(self) -> int:
        """The phase that the loop is in."""
        return self._phase

    def _enter(self, phase: int) -> int:
        before = self._phase
        if phase != before:
            self._phase = phase
            self._timer.enter(phase)
        return before

    def begin_data(self) -> None:
        """Begin to wait for a batch."""
        self._optimizers = 0  # A failed one did not end.
        self._enter(DATA)

    def end_data(self) -> None:
        """Go on with the batch."""
        self._enter(OUTSIDE if self.knows_forward else FORWARD)

    def begin_forward(self) -> None:
        """Begin the forward pass; it ends as the backward pass begins."""
        if not self._backwards:
            self._enter(FORWARD)

    def begin_backward(self) -> bool:
        """Begin a backward pass; return whether it is not a part of another one."""
        self._backwards += 1
        if self._backwards == 1:
            self._enter(BACKWARD)
        return self._backwards == 1

    def computed(self) -> None:
        """Have all gradients, of which the other ranks' parts may be missing."""
        if self._backwards:
            self._enter(EXPOSED)

    def end_backward(self) -> None:
        """End a backward pass, in whichever way."""
        self._backwards -= 1
        if self._backwards == 0:
            self._has_gradients = True
            self._enter(OUTSIDE)

    def begin_wait(self) -> int:
        """Begin to wait for other ranks; what is returned is for :meth:`end_wait`."""
        return self._enter(EXPOSED)

    def end_wait(self, before: int) -> None:
        """Go on with what was interrupted."""
        self._enter(before)

    def begin_optimizer(self) -> None:
        """Begin to apply gradients."""
        self._optimizers += 1
        if self._optimizers > 1:
            return
        if self._has_gradients:
            self._has_gradients = False
            self._timer.end_step(self.gradient_bytes)
        self._enter(OPTIMIZER)

    def end_optimizer(self) -> None:
        """End it."""
        self._optimizers = max(0, self._optimizers - 1)
        if self._optimizers == 0:
            self._enter(OUTSIDE)
