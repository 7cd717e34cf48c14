"""dockerd with scrun as its runtime, as root."""

import json

from tests.harness.daemons import Daemon, only_here, program
from tests.harness.image import image_archive
from tests.harness.site import with_controllers
from tests.harness.users import PATH

_NO_RULES = ("--iptables=false", "--ip6tables=false", "--ip-forward=false")
NO_NETWORK = (*_NO_RULES, "--bridge=none")


class Docker(Daemon):
    """A dockerd of its own, with an image called busybox."""

    def __init__(
        self,
        create_timeout: float = 60,
        storage: str = "vfs",
        *,
        hidden: bool = False,
        engine: str = "slurm",
        bridge: str = "",
        named: bool = True,
    ) -> None:
        """Start it.

        Args:
            create_timeout: As for `Daemon`.
            storage: Its storage driver.
            hidden: Whether nodes do not see its directory.
            engine: As for `Daemon`.
            bridge: The name of a bridge of its own for its networks; "": it has none.
            named: Whether its jobs have a name by which what is left is found.
        """
        super().__init__(create_timeout, engine)
        if not named:
            del self.site.environment["SCRUN_JOB_NAME"]
        execution = self.base / "e"
        self.records = execution / "runtime-runc" / "moby"
        host = f"unix://{self.base}/docker.sock"
        self.command = [program("docker")]
        self.environment = {
            "PATH": PATH,
            "DOCKER_HOST": host,
            "DOCKER_CONFIG": str(self.base / "config"),
            "DOCKER_BUILDKIT": "0",  # it runs runc itself, whatever the runtime is
        }
        settings = self.base / "daemon.json"
        runtimes = {"scrun": {"path": self.site.command[0]}}
        settings.write_text(json.dumps({"runtimes": runtimes, "default-runtime": "scrun"}))
        argv = [
            *(only_here(self.base / "d") if hidden else ()),
            *with_controllers("cpu"),  # or it does not pass limits on
            program("dockerd"),
            f"--config-file={settings}",
            f"--host={host}",
        ]
        argv += [f"--data-root={self.base}/d", f"--exec-root={execution}"]
        argv += [f"--pidfile={self.base}/docker.pid", f"--storage-driver={storage}"]
        argv += [*_NO_RULES, f"--bridge={bridge}"] if bridge else NO_NETWORK
        argv += ["--default-ulimit=nofile=1024:1024", "--shutdown-timeout=5"]
        try:
            self.start(argv, lambda: self.run("version").returncode == 0)
            self.must("load", "--input", str(image_archive(self.site)))
        except BaseException:
            self.close()
            raise

    def containers(self) -> list[str]:
        return self.must("ps", "--all", "--quiet").split()

    def remove(self, *containers: str) -> None:
        if containers:
            self.run("rm", "--force", *containers)
