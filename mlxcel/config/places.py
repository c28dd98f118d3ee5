"""Paths among the settings that must be there before anything is loaded."""

import os
from pathlib import Path

from mlxcel.config.load import Loaded


def faults(loaded: Loaded) -> list[str]:
    """Return a sentence for each path that is missing; each names the flag or variable that it came from."""
    settings, found = loaded.settings, []
    for path in settings.pin_prefix:
        if not os.access(path, os.R_OK) or not path.is_file():
            why = "there is no such file" if not os.path.exists(path) else "it is not a file that can be read"
            found.append(f"{loaded.origins['pin_prefix']}: {str(path)!r} is not accepted: {why}")
    if settings.lora and not os.path.exists(adapter_path(settings.lora)):
        found.append(f"{loaded.origins['lora']}: {settings.lora!r} is not accepted: there is no such directory")
    return found


def adapter_path(text: str) -> Path:
    """Return the path of PATH or PATH:SCALE, as the engine reads it: a tail that is no number belongs to the path."""
    head, _, tail = text.rpartition(":")
    try:
        float(tail)
    except ValueError:
        return Path(text)
    return Path(head or text)


def directory_fault(directory: Path) -> str:
    """Return what is wrong where a file, or a link that leads nowhere, stands in the place of `directory` or of one above
    it, else "". A path that the system refuses (too long, a loop) counts as not there."""
    at = directory
    while not os.path.lexists(at) and at != at.parent:
        at = at.parent
    if os.path.islink(at) and not os.path.exists(at):
        return f"{at} is a link that leads nowhere; choose another --data-dir"
    return "" if os.path.isdir(at) else f"{at} is a file, not a directory; choose another --data-dir"
