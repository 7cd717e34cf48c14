"""Checks of whether the configuration of podman and docker names scrun."""

import os

from scrun.commands.install import ENGINES, InstallTarget, home, home_config
from scrun.core.errors import SettingsError
from scrun.install import docker, files, needs, podman
from scrun.supervisor.programs.doctor.call import (
    Check,
    DoctorCall,
    Reporter,
    in_thread,
    looks,
)
from scrun.supervisor.programs.doctor.findings import Finding, ok, warn
from scrun.supervisor.staging.mapped import why_no_owners

_STORAGE = "podman's storage"


def judge_podman(engine: dict[str, object], usable: str | None) -> Finding:
    """Judge podman's files.

    Args:
        engine: The result of `podman.merged`.
        usable: The executable program of `--runtime scrun`, if any.
    """
    manager = engine.get("cgroup_manager")
    further = f"; cgroup manager {manager}" if manager else ""
    default = "; its default" if engine.get("runtime") == podman.NAME else ""
    named = podman.programs(engine)
    if usable is not None:
        return ok(f"knows scrun as {usable}{default}{further}")
    if named:
        text = f"{engine.get('scrun named by')}: {', '.join(named)} cannot be run"
        return warn(text, "run `scrun install podman` again")
    return warn(f"does not know scrun{further}", "run `scrun install podman`")


def judge_docker(path: str, program: str | None, *, usable: bool) -> Finding:
    """Judge docker's file.

    Args:
        path: The daemon.json that was read, or would have been.
        program: The program that it names for scrun; "" if that is unclear, None if it names none.
        usable: Whether the program exists and can be executed.
    """
    if program is None:
        return warn(f"does not know scrun ({path})", "run `scrun install docker`")
    if not usable:
        text = f"{path}: runtimes.scrun: {program or 'more than a path'} cannot be run"
        return warn(text, "correct it, or remove it and run scrun install docker")
    return ok(f"{path}: knows scrun as {program}")


def judge_storage(storage: podman.Storage, engine: str, why_no_owners: str = "") -> Finding:
    """Judge podman's storage.

    `why_no_owners` is why files there cannot belong to the user's subordinate ids, or "".
    """
    if why_no_owners:
        return warn(
            f"{storage.graphroot}: files there cannot have an image's users ({why_no_owners})",
            "set graphroot in storage.conf to a file system where they can, such as a local disk; "
            "NFS does not work",
        )
    if engine != "slurm" or storage.driver in podman.WITHOUT_COPIES:
        return ok(f"driver {storage.driver}")
    what, _, remedy = podman.STORAGE.partition("; ")
    return warn(f"driver {storage.driver}: {what}", remedy)


def _own(call: DoctorCall) -> str | None:
    return None if os.geteuid() == 0 else home_config(call.child_env.environment)


async def _podman(call: DoctorCall, report: Reporter) -> None:
    if call.which("podman") is None:
        report("podman", ok("not installed"))
        report(_STORAGE, ok("podman is not installed"))
        return
    report(_STORAGE, await in_thread(_look_at_storage, call))
    report("podman", await in_thread(_look_at_podman, call))


def _look_at_storage(call: DoctorCall) -> Finding:
    own, environment = _own(call), call.child_env.environment
    try:
        storage = podman.storage(environment, own, home(environment))
    except SettingsError as error:
        return warn(str(error), "correct that file")
    there = storage.graphroot
    while not os.path.lexists(there) and there != "/":
        there = os.path.dirname(there)
    why = why_no_owners(there) if own and os.access(there, os.W_OK) else ""
    return judge_storage(storage, call.engine.name if call.engine else "", why)


def _look_at_podman(call: DoctorCall) -> Finding:
    try:
        engine = podman.merged(podman.files(call.child_env.environment, _own(call)))
    except SettingsError as error:
        return warn(str(error), "correct that file")
    usable = (path for path in podman.programs(engine) if os.access(path, os.X_OK))
    return judge_podman(engine, next(usable, None))


def _docker(call: DoctorCall) -> Finding:
    """Check the user's own file, for rootless docker, and the machine's."""
    if call.which("dockerd") is None:
        return ok("not installed")
    paths = [InstallTarget(place).daemon for place in dict.fromkeys((_own(call), None))]
    try:
        for path in paths:
            text = files.read(path)
            program = docker.entry(text, path) if text is not None else None
            if program is not None:
                usable = os.path.isfile(program) and os.access(program, os.X_OK)
                return judge_docker(path, program, usable=usable)
    except SettingsError as error:
        return warn(str(error), "correct that file")
    return judge_docker(" and ".join(paths), None, usable=False)


def _packages(call: DoctorCall) -> Finding:
    """Check for the programs that containers need, and those of engines that are to know scrun."""
    engines = []
    for name in ENGINES:
        try:
            if any(InstallTarget(place).has(name) for place in dict.fromkeys((_own(call), None))):
                engines.append(name)
        except SettingsError:
            pass  # the engine's own check says so
    here = not call.by_slurm and call.settings.local.oci_conf is None
    root = os.geteuid() == 0
    lacking = needs.missing(
        engines,
        call.which,
        here=here and (call.engine is None or call.engine.name == "local"),
        slurm=call.by_slurm and not call.settings.slurm.bin,
        rootless=not root,
    )
    return judge_packages(lacking, needs.remedy(lacking, call.which, root=root))


def judge_packages(lacking: list[needs.Need], remedy: str) -> Finding:
    """Judge what is not installed."""
    if not lacking:
        return ok("all that is needed here is installed")
    return warn(f"not installed: {needs.names(lacking)}", remedy)


CHECKS = (
    Check(("podman", _STORAGE), _podman),
    looks("docker", _docker),
    looks("packages", _packages),
)
