"""The one entrance to all decisions: a command's type picks the function that decides it."""

from collections.abc import Callable
from typing import Any

from mlxcel.core import commands as cmd
from mlxcel.core.decide.adopt import decide_adopt
from mlxcel.core.decide.donate import decide_donate, decide_end, decide_seal
from mlxcel.core.decide.lifecycle import decide_cold, decide_namespace, decide_policy, decide_recover, decide_reset
from mlxcel.core.decide.operator import (
    decide_delete,
    decide_demote,
    decide_pin,
    decide_promote,
    decide_shrink,
    decide_unpin,
)
from mlxcel.core.decide.snapshot import decide_capture
from mlxcel.core.decide.tiers import decide_restore, decide_spills, decide_sweep
from mlxcel.core.events import Event
from mlxcel.core.state import State


def decide(state: State, command: cmd.Command) -> list[Event]:
    """Return what follows from `command` in `state`, as events in the order they are to be applied. Pure."""
    return _DECIDERS[type(command)](state, command)


_DECIDERS: dict[type, Callable[[State, Any], list[Event]]] = {
    cmd.AdoptPolicy: decide_policy,
    cmd.OpenNamespace: decide_namespace,
    cmd.AdoptPrefix: decide_adopt,
    cmd.ServeCold: decide_cold,
    cmd.SealPrefix: decide_seal,
    cmd.CaptureSnapshot: decide_capture,
    cmd.DonatePrefix: decide_donate,
    cmd.EndRequest: decide_end,
    cmd.RecordSpills: decide_spills,
    cmd.RecordRestore: decide_restore,
    cmd.SweepExpired: decide_sweep,
    cmd.ResetCache: decide_reset,
    cmd.PinPrefix: decide_pin,
    cmd.UnpinPrefix: decide_unpin,
    cmd.DeleteEntries: decide_delete,
    cmd.PromoteEntry: decide_promote,
    cmd.DemoteEntry: decide_demote,
    cmd.ShrinkMemory: decide_shrink,
    cmd.Recover: decide_recover,
}
