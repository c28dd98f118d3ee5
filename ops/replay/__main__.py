"""`mlxcel-replay` and `python -m ops.replay`: what happened to a cache, whether it would be decided so again, and what if.

SOURCE is a data directory (also of a running daemon: nothing is changed), a log folder or an exported file. The short form
`python -m ops.replay SOURCE [--verify] [--json]` prints or verifies the history.

Exit codes: 0 as it should be, 1 a record diverges or the log is damaged, 2 wrong usage, no log, not found.
"""

import click

from ops.replay.commands.common import EXIT_CODES
from ops.replay.commands.exchange import export, import_command
from ops.replay.commands.history import diff, explain_command, fold, show, verify_command
from ops.replay.commands.whatif import what_if


class ShortForm(click.Group):
    """A group whose command may be left away: then the first argument is a source to show."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `show` before arguments that name no command."""
        own = {name for param in self.get_params(ctx) for name in param.opts}
        if args and args[0] not in self.commands and args[0] not in own:
            args = ["show", *args]
        return super().parse_args(ctx, args)


@click.group(
    cls=ShortForm, epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
def main() -> None:
    """Read a cache's event log: what happened, whether it would be decided so again, and what if.

    SOURCE is a data directory (also of a running daemon: nothing is changed), a log folder or an exported file.

    Short form: mlxcel-replay SOURCE [--verify] [--json] prints or verifies the history.
    """


for _command in (show, fold, verify_command, explain_command, diff, what_if, export, import_command):
    main.add_command(_command)

if __name__ == "__main__":
    main(prog_name="mlxcel-replay")
