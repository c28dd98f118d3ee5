"""Run in a new process: `python -m tests.families.second MODEL_DIR DATA_DIR FINDING`; prints the finding as JSON."""

import sys
from pathlib import Path

import msgspec

from tests.families.build import family_engine
from tests.families.checks import Finding, resume


def main(model_dir: str, data_dir: str, finding: str) -> None:
    """Resume what another process began."""
    found = msgspec.json.decode(finding, type=Finding)
    resume(family_engine(Path(model_dir)), Path(data_dir), found)
    print(msgspec.json.encode(found).decode())


if __name__ == "__main__":
    main(*sys.argv[1:])
