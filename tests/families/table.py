"""The table of architectures: what each keeps, and what of it can be reused."""

import importlib.metadata
from pathlib import Path

from tests.families.checks import Finding

WORDS = {
    "prefix": "any prefix, in blocks",
    "snapshot": "captured positions",
    "none": "nothing",
}


def write_table(file: Path, findings: list[Finding], not_built: dict[str, str]) -> None:
    """Write Markdown; sorted, so that two runs differ only where behaviour does."""
    version = importlib.metadata.version("mlx-lm")
    rows = sorted(findings, key=lambda found: found.name.lower())
    reusable = sum(1 for found in rows if found.reuse != "none")
    lines = [
        f"# Architectures of mlx-lm {version}",
        "",
        "Written by `make families`: a tiny random-weight model of each runs through the real service; each hit, from",
        "memory and after a restart from disk, gives the log-probabilities of a cold run that is split alike, bit for bit.",
        "",
        f"{len(rows)} architectures, {reusable} of them reusable; {len(not_built)} more can't be built tiny here.",
        "",
        "| architecture | layers | reusable | decoding | why not |",
        "|---|---|---|---|---|",
    ]
    for found in rows:
        words = WORDS[found.reuse]
        lane = "together" if found.lane == "batched" else "in turn"
        lines.append(f"| {found.name} | {found.layers} | {words} | {lane} | {found.refusal} |")
    lines += ["", "Not built:", ""]
    lines += [f"- {name}: {why}" for name, why in sorted(not_built.items())]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
