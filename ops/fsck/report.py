"""What a check of a data directory found, as plain values and as words."""

import msgspec


class Finding(msgspec.Struct, frozen=True):
    """One thing that is not as it should be. `kind` is from a closed list; `repair` says what --repair does about it."""

    kind: str
    where: str
    what: str
    repair: str = ""


class Report(msgspec.Struct):
    """All of a check. Sizes in bytes."""

    data_dir: str
    running_pid: int | None = None
    log_segments: int = 0
    log_records: int = 0  # with checkpoints; `mlxcel-replay --verify` counts records alone
    log_bytes: int = 0
    pieces: int = 0
    stored_bytes: int = 0
    file_bytes: int = 0
    referred: int = 0  # pieces that the log's state says are on disk
    findings: list[Finding] = []
    repaired: list[str] = []

    def say(self) -> list[str]:
        """Return the report in lines."""
        owner = f", in use by process {self.running_pid}" if self.running_pid is not None else ""
        lines = [
            f"{self.data_dir}{owner}",
            f"log    {self.log_records} records and checkpoints in {self.log_segments} segments, {self.log_bytes} bytes",
            f"tier   {self.pieces} pieces, {self.stored_bytes} bytes stored, {self.file_bytes} bytes of file",
            f"state  {self.referred} pieces on disk by the log",
        ]
        for finding in self.findings:
            lines.append(f"{finding.kind}: {finding.where}: {finding.what}")
            if finding.repair and not self.repaired:
                lines.append(f"    --repair would {finding.repair}")
        lines += [f"repaired: {text}" for text in self.repaired]
        if not self.findings:
            lines.append("all is well")
        return lines
