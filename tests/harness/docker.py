"""dockerd with scrun as its runtime, of root and rootless."""

import json

from tests.harness import users
from tests.harness.daemons import Daemon, only_here, program
from tests.harness.image import image_archive
from tests.harness.program import run_program
from tests.harness.site import with_controllers
from tests.harness.users import PATH

_NO_RULES = ("--iptables=false", "--ip6tables=false", "--ip-forward=false")
NO_NETWORK = (*_NO_RULES, "--bridge=none")


ROOTLESS = "/usr/share/docker.io/contrib/dockerd-rootless.sh"


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
        rootless: bool = False,
    ) -> None:
        """Start it.

        Args:
            create_timeout: See `Site`.
            storage: Its storage driver.
            hidden: Whether nodes do not see its storage.
            engine: Where its containers run.
            bridge: The name of a bridge of its own for its networks; "": it has none.
            rootless: Whether it is an ordinary user's, whose networks are in rootlesskit's.
            named: Whether its jobs have a name by which what is left is found.
        """
        user = users.ordinary() if rootless else users.root()
        super().__init__(create_timeout, engine, user)
        self.prefix = user.prefix
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
        options = [f"--config-file={settings}", f"--host={host}"]
        options += [f"--data-root={self.base}/d", f"--exec-root={execution}"]
        options += [f"--pidfile={self.base}/docker.pid", f"--storage-driver={storage}"]
        options += ["--default-ulimit=nofile=1024:1024", "--shutdown-timeout=5"]
        argv = [*only_here(self.base / "d")] if hidden else []
        if rootless:
            kit = f"--state-dir={self.base}/k"
            self.site.environment["DOCKERD_ROOTLESS_ROOTLESSKIT_FLAGS"] = kit
            argv += [*user.prefix, self.site.command[0], "outside", ROOTLESS, *options]
        else:
            # with controllers, or it does not pass limits on
            argv += [*with_controllers("cpu"), program("dockerd"), *options]
            argv += [*_NO_RULES, f"--bridge={bridge}"] if bridge else NO_NETWORK
        try:
            self.start(argv, lambda: self.run("version").returncode == 0)
            self.must("load", "--input", str(image_archive(self.site)))
        except BaseException:
            self.close()
            raise

    def compose(self, *arguments: str) -> str:
        """Call docker compose, of whatever version; return what it printed."""
        command = [*self.prefix, program("docker-compose"), *arguments]
        environment = {**self.environment, "HOME": str(self.base)}
        done = run_program(command, env=environment, cwd=self.base, timeout=120)
        assert done.returncode == 0, f"{arguments}: {done.stderr}"
        return done.stdout

    def containers(self) -> list[str]:
        return self.must("ps", "--all", "--quiet").split()

    def remove(self, *containers: str) -> None:
        if containers:
            self.run("rm", "--force", *containers)
