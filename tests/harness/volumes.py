"""A submit host with volumes, and containers that use them, without the containers."""

import os
import time
from pathlib import Path

import msgspec

from scrun.images.leases import Lease, lease_of
from scrun.model.identity import myself
from scrun.model.record import ProcessIdentity
from scrun.supervisor.staging.mounts import Volume
from scrun.supervisor.staging.owner import volumes_in
from scrun.supervisor.staging.transfer import Transfer
from scrun.supervisor.staging.volumes import bring_back, bring_in

GRAIN = 0.02  # seconds; that of the kernel's file times is some milliseconds


class Site:
    """A submit host with a volume, and containers that use it."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.root = base / "root"
        self.scratch = base / "scratch"
        self.volume = base / "volume"
        for path in (self.root, self.scratch, self.volume):
            path.mkdir(mode=0o700)
        (self.volume / "old").write_text("old")
        (self.volume / "folder").mkdir()
        (self.volume / "folder" / "inner").write_text("inner")
        time.sleep(GRAIN)

    @property
    def shared(self) -> Path:
        return Path(volumes_in(str(self.scratch), str(self.root)))

    def begin(
        self, name: str, source: Path | None = None, *, read_only: bool = False, limit: int = 0
    ) -> Path:
        """Stage a container's volume; return the path of its copy."""
        (self.root / name).mkdir()
        (self.scratch / name).mkdir()
        source = source or self.volume
        volume = Volume(
            destination="/x",
            source=str(source),
            place=str(self.shared / source.name),
            is_file=not source.is_dir(),
            read_only=read_only,
            shared=True,
        )
        transfer = Transfer(lease_of(str(self.root), name), limit)
        bring_in(
            str(self.scratch / name), [volume], transfer, owners=os.geteuid() == 0, mode=0o700
        )
        time.sleep(GRAIN)
        return Path(volume.data)

    def end(self, name: str) -> None:
        time.sleep(GRAIN)
        bring_back(str(self.scratch / name), Transfer())
        (self.root / name).rmdir()

    def kept(self) -> list[Path]:
        return [*self.scratch.glob("~kept-*/data")]

    def is_clean(self) -> bool:
        return not (self.shared.exists() or self.kept())


def lost(site: Site, name: str) -> None:
    """Have a container's supervisor be dead, and its record gone: the machine was restarted."""
    for path in site.shared.rglob("leases/*"):
        lease = msgspec.json.decode(path.read_bytes(), type=Lease)
        if lease.id == name:
            mine = myself()
            dead = ProcessIdentity(mine.pid, mine.started, mine.pid_namespace, "before", mine.host)
            path.write_bytes(msgspec.json.encode(msgspec.structs.replace(lease, taker=dead)))
    (site.root / name).rmdir()
