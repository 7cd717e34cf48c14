"""Where the containers of one engine run: a site of the tests, with variants of its settings."""

import itertools
import json
import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any

import trio

from tests.harness.disk import mounted
from tests.harness.installation import Installation
from tests.harness.site import Site
from tests.harness.users import User
from tests.stress.chaos import files, networks
from tests.stress.chaos.children import Call, Children, Done, Parent, begin
from tests.stress.chaos.faults import TRAPPED
from tests.stress.chaos.forwards import server, share_network
from tests.stress.chaos.images import STORE, HiddenImage
from tests.stress.chaos.plan import Plan
from tests.stress.chaos.points import installation
from tests.stress.chaos.pools import SETTINGS

TAG = "CHAOS_CONTAINER"
MARK = "chaos_command"
"""What is in each command of the script, so that they can be told from others."""

_IMPATIENT = 0.3  # seconds that `create` waits for a job that has to wait
_LOOKS = 0.2
_PORTS = 12000
_OF_A_ROOT = "size=2g"

_SCRIPT = """
local function run(text)
  local status = slurm.allocator_command(": {mark}; " .. text)
  if status ~= 0 then error("the command ended with " .. status) end
end
function slurm_scrun_stage_in(id)
  run("sleep 0.05")
  return slurm.SUCCESS
end
function slurm_scrun_stage_out(id)
  run("sleep 0.02; echo " .. id .. " >> {base}/staged-out")
  return slurm.SUCCESS
end
"""

ANSWERS = "while read -r n && [ $n != end ]; do echo got $n; done"
"""Answers to each line."""

FILES = 3
"""How many files each container writes to its volume before it says that it is up."""

_WRITE = f"for n in $(seq {FILES}); do echo $n >/tmp/$n; done; "
_DEAF = "trap '' TERM INT HUP QUIT USR1; "
_HEARING = f"trap 'exit {TRAPPED}' TERM INT; "


def launch_of(conf: str) -> str:
    """Return what is to make containers on a cluster's nodes: a shim, without an oci.conf."""
    return "container" if Path(conf).with_name("oci.conf").exists() else "shim"


class Testbed:
    """One engine's.

    Attributes:
        site: The site.
        engine: Its name.
        hit_pods: The numbers of pods of which a member was hit.
    """

    def __init__(
        self,
        engine: str,
        user: User,
        children: Children,
        linger: float = 0,
        *,
        in_memory: bool = False,
        in_pool: bool = False,
        shows_files: bool = False,
    ) -> None:
        """Make the place.

        Args:
            in_pool: Whether containers run in the pool `auto`, if they can.
            shows_files: Whether an engine sees containers' files in its storage, too.
            in_memory: Whether the root directory is in memory, as the default one, if the nodes
                need not see it.
        """
        self.hit_pods: set[int | None] = set()
        self._linger = linger if engine == "slurm" else 0.0
        self._in_pool = in_pool
        self._shows_files = shows_files
        self.site = Site(engine, user, 'idle_timeout = 3\n[log]\nlevel = "debug"\n')
        self.engine = engine
        self._in_memory = ExitStack()
        if in_memory and (engine != "slurm" or self.launch == "shim"):
            root = str(self.site.root)
            self._in_memory.enter_context(mounted(root, user.uid, user.gid, _OF_A_ROOT))
        self.scratch.mkdir(0o700)
        user.give(self.scratch)
        self.children = children
        self._settings: dict[tuple[bool, ...], str] = {}
        self._gate = ""
        self._confs: list[Path] = []
        self._numbers = itertools.count(1)
        script = self.site.base / "chaos.lua"
        script.write_text(_SCRIPT.format(mark=MARK, base=self.site.base))
        self.staged_out.touch()
        user.give(self.staged_out)

    @property
    def staged_out(self) -> Path:
        """Where the script notes whose stage_out was called."""
        return self.site.base / "staged-out"

    @property
    def scratch(self) -> Path:
        """Where bundles are staged: the nodes see it, and not what is in memory here."""
        return self.site.base / "staging"

    @property
    def launch(self) -> str:
        """What makes its containers on the nodes."""
        if self.engine != "slurm":
            return "container"
        return launch_of(self.site.environment["SLURM_CONF"])

    @property
    def root(self) -> str:
        """The root directory of most containers."""
        return str(self.site.root)

    def disk(self, plan: Plan) -> str | None:
        """Return the small file system of a container, if it has one."""
        if not plan.fault.disk:
            return None
        base = self.site.base
        if self.engine == "slurm" or plan.inside:  # nodes see what is mounted below this directory
            path = str(self.cluster / "disks" / f"{base.name}-{plan.number}")
        else:
            path = f"{base}/d{plan.number}"
        return f"{path}/disk" if plan.fault.action == "freeze" else path

    def root_of(self, plan: Plan) -> str:
        """Return the root directory of a container."""
        if plan.fault.point:
            return f"{self.site.base}/p{plan.number}"
        disk = self.disk(plan)
        return disk if disk and plan.fault.disk == "root" else self.root

    def tag(self, plan: Plan) -> str:
        """Return what every process of a container has in its environment."""
        return f"{self.site.base.name}.{plan.number}."

    def job_name(self, plan: Plan) -> str:
        """Return the name of a container's job: alike where one may have that of another."""
        alike = self._linger and not plan.waits and not plan.fault.own
        return f"{self.site.base.name}.any." if alike else self.tag(plan)

    @property
    def pool(self) -> str:
        """The name of the pool's jobs."""
        return f"{self.site.base.name}.pool."

    def settings(self, plan: Plan) -> str:
        """Return the settings' file for a container."""
        own, script, waits = plan.fault.own, plan.kind == "script", plan.waits
        disk, point = plan.fault.disk, bool(plan.fault.point)
        key = own, script, waits, point
        name = "".join(str(int(part)) for part in key)
        path = self.site.base / f"{name}{plan.number if disk else ''}.toml"
        if key not in self._settings or disk:
            text = f'engine = "{self.engine}"\nidle_timeout = {0.5 if own else 3}\n'
            text += 'group = "container"\n' if own else ""
            text += f"create_timeout = {_IMPATIENT}\n" if waits else ""
            # what waits holds the root directory
            kept = 0 if point or disk else self._linger
            if self.engine == "slurm":
                text += f'[slurm]\nlaunch = "{self.launch}"\n'
                text += f"linger = {kept}\n" if kept else ""
                text += SETTINGS.format(name=self.pool) if self._in_pool else ""
            text += '[log]\nlevel = "debug"\n'
            named = str(self.site.base / "chaos.lua") if script else "none"
            text += f'[lua]\nscript = "{named}"\n'
            text += f'[images]\nstore = "{self.disk(plan)}/{STORE}"\n' if disk == "store" else ""
            scratch = self.disk(plan) if disk == "scratch" else self.scratch
            text += f'[staging]\nscratch = "{scratch}"\n'
            text += files.SETTINGS if self._shows_files else ""
            path.write_text(text)
            if not disk:
                self._settings[key] = str(path)
        return str(path)

    def environment(self, plan: Plan) -> dict[str, str]:
        """Return the environment of a container's `create`."""
        found = {
            **self.site.environment,
            "SCRUN_CONFIG": self.settings(plan),
            TAG: self.tag(plan),
        }
        is_frozen = plan.fault.action == "freeze" and plan.fault.disk == "root"
        if is_frozen or plan.fault.point:  # records are written in the loop; a point waits there
            del found["SCRUN_WATCHDOG"]
        if self.engine == "slurm":
            found["SCRUN_JOB_NAME"] = self.job_name(plan)
        if plan.files:
            found |= files.UNDER_CONMON
        if plan.fault.few_ports:
            found["SLURM_CONF"] = str(self._conf_with_few_ports(plan))
        if plan.waits:
            found["SCRUN_DEPENDENCY"] = f"afterany:{self._gate}"
        return found

    def _conf_with_few_ports(self, plan: Plan) -> Path:
        """Write a slurm.conf for a container: salloc needs a port, srun some, scrun one."""
        path = self.cluster / "etc" / f"{self.site.base.name}.{plan.number}.conf"
        if not path.exists():
            first = _PORTS + plan.number % 500 * 10
            ports = f"SrunPortRange={first}-{first + plan.number % 8}\n"
            path.write_text(path.with_name("slurm.conf").read_text() + ports)
            self._confs.append(path)
        return path

    async def make_gate(self) -> None:
        """Submit a job that never runs, for those to depend on that have to wait."""
        words = ["sbatch", "--parsable", "--hold", "--job-name=gate", "--output=none"]
        user = self.site.user
        done = await self.children.run(
            [*user.prefix, *words, "--wrap=true"], {**self.slurm_environment, "HOME": user.home}
        )
        if done.status:
            raise RuntimeError(f"sbatch ended with {done.status}: {done.err}")
        self._gate = done.out.strip()

    async def open_gate(self, plan: Plan, over: Callable[[], bool]) -> None:
        """Let the job of a container go, unless that is over.

        A slurmctld that was killed may have forgotten that there was such a job.
        """
        queued = ["squeue", "-h", "-n", self.tag(plan), "-o", "%i"]
        while not over():
            for job in (await self._slurm(*queued)).out.split():
                words = ["scontrol", "update", f"JobId={job}", "Dependency="]
                if (await self._slurm(*words)).status == 0:
                    return
            await trio.sleep(_LOOKS)

    async def remove_gate(self) -> None:
        """Cancel the job that never runs."""
        if self._gate:
            await self._slurm("scancel", self._gate)

    async def _slurm(self, *words: str) -> Done:
        return await self.children.run(words, self.slurm_environment)

    def command(self, plan: Plan, *arguments: str, parent: Parent | None = None) -> list[str]:
        """Return the command line of a call of scrun.

        Args:
            plan: The container's.
            arguments: Of scrun.
            parent: Whose child it will be; in a job, the user's.
        """
        before = plan.fault.before if arguments[0] == "create" else ()
        scrun = self._pointed.binary if plan.fault.point else self.site.command[0]
        within = parent is not None and parent is not self.children
        words = [*([] if within else self.site.user.prefix), *before, scrun]
        words += ["--root", self.root_of(plan)]
        if within and plan.inside == "step" and self.engine == "slurm":
            words += ["--engine", "slurm"]  # else it is the task's own
        return [*words, *arguments]

    async def call(
        self, plan: Plan, parent: Parent, *arguments: str, stdin: int | None = None
    ) -> Call:
        """Begin a call of scrun, with a descriptor for its standard input, which is closed."""
        command = self.command(plan, *arguments, parent=parent)
        return await begin(parent, command, self.environment(plan), stdin=stdin)

    def volume(self, plan: Plan) -> Path:
        """Return a container's volume, which the nodes do not see."""
        return Path("/dev/shm", self.site.base.name, str(plan.number))

    def what_is_missing(self, plan: Plan) -> list[str]:
        """Return what is not in a container's volume as it has written it; remove the volume."""
        volume = self.volume(plan)
        names = {str(number) for number in range(1, FILES + 1)}
        wrong = {path.name for path in volume.iterdir()}.symmetric_difference(names)
        found = names.difference(wrong)
        wrong |= {name for name in found if (volume / name).read_text() != f"{name}\n"}
        shutil.rmtree(volume)
        return sorted(wrong)

    def network(self, plan: Plan) -> Path:
        """Return where the network of a container's engine is."""
        return self.site.base / f"network{plan.number}"

    def storage(self, plan: Plan) -> Path:
        """Return where the engine of a container has its root file system."""
        return self.site.base / f"storage{plan.number}"

    def bundle(self, plan: Plan) -> Path:
        before, after = plan.lines
        serves = server(plan) if plan.forwards or plan.network else ""
        begins = f"{_WRITE if plan.has_volume else ''}{serves}echo up; "
        up = f"{_HEARING}{begins}"
        scripts = {
            "status": f"{up}read gate; exit {plan.status}",
            "script": f"{up}read gate; exit {plan.status}",
            "exec": f"{up}read gate; exit {plan.status}",
            "lines": f"{up}seq {before}; read gate; seq {after}; exit {plan.status}",
            "stdin": f"{up}while read -r line; do echo $line; done; exit {plan.status}",
            "terminal": f"{up}read gate; echo down; exit {plan.status}",
            "kill": f"{up}sleep 600 & wait",
            "program": f"{up}read gate; exit {plan.status}",
            "logs": f"{up}seq {before}; read gate; seq {after}; exit {plan.status}",
            "attach": f"stty -echo -onlcr; {up}{ANSWERS}; exit {plan.status}",
            "stubborn": f"{_DEAF}{begins}read gate; exit {plan.status}",
        }
        config = self.site.config(
            "sh", "-c", scripts[plan.kind], terminal=plan.kind in ("terminal", "attach")
        )
        config["process"]["env"].append(f"{TAG}={self.tag(plan)}")
        if plan.has_volume:
            volume = self.volume(plan)
            volume.mkdir(parents=True, mode=0o700)
            self.site.user.give(volume)
            mount = {"destination": "/tmp", "type": "bind", "source": str(volume)}
            config["mounts"].append({**mount, "options": ["rbind"]})
        if plan.network:
            networks.made(self.network(plan), config)
        elif plan.forwards:
            share_network(plan, config)
        if plan.pod is not None:
            config["annotations"]["org.scrun.pod"] = f"{self.site.base.name}.{plan.pod}"
        if plan.fault.disk == "store":
            config["root"]["path"] = self._image.container(plan.number)
        if plan.files:
            config["root"] = {"path": f"{self.storage(plan)}/merged"}
        if plan.kind == "script":
            self._fit(config)
        return self.site.bundle(config)

    def _fit(self, config: dict[str, Any]) -> None:
        """Make a configuration run as it is: no policy makes it fit."""
        user = self.site.user
        linux = config["linux"]
        if user.uid:
            for mount in config["mounts"]:
                options = mount.get("options", [])
                mount["options"] = [word for word in options if not word.startswith("gid=")]
            linux["uidMappings"] = [{"containerID": 0, "hostID": user.uid, "size": 1}]
            linux["gidMappings"] = [{"containerID": 0, "hostID": user.gid, "size": 1}]
            linux["namespaces"].append({"type": "user"})

    @cached_property
    def _pointed(self) -> Installation:
        """The scrun of containers whose supervisor stops at a point."""
        return installation()

    @cached_property
    def _image(self) -> HiddenImage:
        """An image that the nodes do not see."""
        return HiddenImage(self.site)

    def unmount(self) -> None:
        """Take away what is mounted for all containers."""
        if (image := self.__dict__.pop("_image", None)) is not None:
            image.close()

    def close(self) -> None:
        """Remove what is not below the site's directory, for which see `remove`."""
        self.unmount()
        shutil.rmtree(Path("/dev/shm", self.site.base.name), ignore_errors=True)
        if "_pointed" in self.__dict__:
            self._pointed.close()
        for path in self._confs:
            path.unlink()

    def remove(self) -> None:
        """Remove the site's directory, when nothing of it runs any more. Call this in a thread."""
        self._in_memory.close()
        shutil.rmtree(self.site.base, ignore_errors=True)

    def stated(self, plan: Plan, container: str) -> dict[str, Any]:
        """Return a container's record, or nothing."""
        return self.read_record(f"{self.root_of(plan)}/{container}")

    def read_record(self, directory: str) -> dict[str, Any]:
        """Return the record in a directory, or nothing."""
        try:
            with open(f"{directory}/state.json") as file:
                found: dict[str, Any] = json.load(file)
        except (OSError, ValueError):
            return {}
        return found

    @cached_property
    def cluster(self) -> Path:
        """The directory of the cluster."""
        return Path(os.environ["SLURM_CONF"]).parents[1]

    @cached_property
    def slurm_environment(self) -> dict[str, str]:
        """What Slurm's commands get when root runs them."""
        return {"PATH": os.environ["PATH"], "SLURM_CONF": os.environ["SLURM_CONF"]}
