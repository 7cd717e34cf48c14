"""containerd with scrun as the binary of its runc shim, as root."""

import platform

from tests.harness.daemons import Daemon, only_here, program
from tests.harness.image import image_archive
from tests.harness.users import PATH

IMAGE = "docker.io/library/busybox:latest"
_UNUSED = ("grpc.v1.cri", "internal.v1.opt")


class Containerd(Daemon):
    """A containerd of its own, with an image called busybox.

    Attributes:
        run_options: What makes `ctr run` use scrun.
    """

    def __init__(
        self,
        create_timeout: float = 60,
        snapshotter: str = "native",
        *,
        hidden: bool = False,
        engine: str = "slurm",
    ) -> None:
        super().__init__(create_timeout, engine)
        socket = self.base / "containerd.sock"
        self.command = [program("ctr"), "--address", str(socket)]
        self.environment = {"PATH": PATH}
        self.run_options: tuple[str, ...] = (
            "run", "--snapshotter", snapshotter, "--runtime", "io.containerd.runc.v2",
            "--runc-binary", self.site.command[0], "--runc-root", str(self.base / "records"),
        )  # fmt: skip
        if engine == "local":
            # ctr asks for 1024 by default, which no runtime gives where cgroups lack "cpu"
            self.run_options += ("--cpu-shares", "0")
        self.records = self.base / "records" / "default"
        settings = self.base / "config.toml"
        disabled = ", ".join(f'"io.containerd.{name}"' for name in _UNUSED)
        settings.write_text(
            f'version = 2\nroot = "{self.base}/d"\nstate = "{self.base}/e"\n'
            f'disabled_plugins = [{disabled}]\n[grpc]\naddress = "{socket}"\n'
            f'[ttrpc]\naddress = "{socket}.ttrpc"\n'
            # containerd 2 itself unpacks what it imports, only for the snapshotters named here
            '[[plugins."io.containerd.transfer.v1.local".unpack_config]]\n'
            f'platform = "linux/{platform.machine()}"\nsnapshotter = "{snapshotter}"\n'
        )
        argv = [*(only_here(self.base / "d") if hidden else ())]
        argv += [program("containerd"), "--config", str(settings)]
        try:
            self.start(argv, lambda: self.run("version").returncode == 0)
            if hidden:  # it mounts root file systems itself, to look for users
                self.prefix = ["nsenter", "--mount", f"--target={self.pid}"]
            archive = str(image_archive(self.site))
            self.must("image", "import", "--snapshotter", snapshotter, archive)
        except BaseException:
            self.close()
            raise

    def containers(self) -> list[str]:
        return self.must("container", "ls", "--quiet").split()

    def remove(self, *containers: str) -> None:
        for container in containers:
            self.run("task", "rm", "--force", container)
            self.run("container", "rm", container)
