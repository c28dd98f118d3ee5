"""What is known about one setting: its spellings, its kind, its words in the help."""

import msgspec

from mlxcel.config.kinds import Kind


class Flag(msgspec.Struct, frozen=True):
    """One spelling on the command line.

    `sets`: the value of a flag that takes none (`--no-batch` sets "1"). `bare`: the value when `=VALUE` is left out.
    `alias`: gives way to the setting's own flag when both are given. `kind`: where it differs from the setting's.
    `help`: words for a spelling that isn't the setting's first.
    """

    names: tuple[str, ...]
    sets: str | None = None
    bare: str | None = None
    alias: bool = False
    kind: Kind | None = None
    help: str = ""

    @property
    def name(self) -> str:
        """The spelling used in messages: the last one, which is the long one."""
        return self.names[-1]


class Env(msgspec.Struct, frozen=True):
    """One environment variable. `kind`: where it differs from the setting's."""

    name: str
    kind: Kind | None = None


class Option(msgspec.Struct, frozen=True):
    """One row of the table of settings. Earlier flags win over later ones, earlier variables over later ones.

    `default_text`: words for a default that isn't one value. `secret`: never printed. `repeat`: may be given often.
    """

    group: str
    help: str
    kind: Kind
    flags: tuple[Flag, ...] = ()
    env: tuple[Env, ...] = ()
    default_text: str = ""
    repeat: bool = False
    secret: bool = False


def flag(*names: str) -> Flag:
    """Return a flag that takes a value."""
    return Flag(names)


def on_off(name: str, *opposites: str) -> tuple[Flag, ...]:
    """Return `--name[=BOOL]`, where bare means true, and flags that set it to false."""
    words = f"Same as {name}=false"
    return (Flag((name,), bare="true"), *(Flag((other,), sets="false", help=words) for other in opposites))
