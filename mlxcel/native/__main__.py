"""`python -m mlxcel.native COMMAND ...` runs a command with the BLAS bridge where there is one."""

import os
import sys

from mlxcel.native.build import MARK, build, environment


def main(arguments: list[str]) -> int:
    """Run the command in place of this process; without one, say whether there is a bridge."""
    if not arguments:
        bridge = build()
        print(bridge.library or f"no bridge: {bridge.reason}")
        return 0
    env = environment()
    env.pop(MARK, None)
    try:
        os.execvpe(arguments[0], arguments, env)
    except OSError as error:
        print(f"{arguments[0]}: {error}", file=sys.stderr)
        return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
