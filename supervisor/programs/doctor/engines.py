"""Checks of whether the configuration of podman and docker names scrun."""

import os

import trio

from scrun.commands.install import ENGINES, InstallTarget, home, home_config
from scrun.core.errors import SettingsError
from scrun.install import docker, files, needs, podman
from scrun.supervisor.programs.doctor.call import Check, DoctorCall, Reporter
from scrun.supervisor.programs.doctor.findings import Finding
from scrun.supervisor.staging.mapped import why_no_owners


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
        return Finding("podman", "ok", f"knows scrun as {usable}{default}{further}")
    if named:
        text = f"{engine.get('scrun named by')}: {', '.join(named)} cannot be run"
        return Finding("podman", "warn", text, "run `scrun install podman` again")
    return Finding("podman", "warn", f"does not know scrun{further}", "run `scrun install podman`")


def judge_docker(path: str, program: str | None, *, usable: bool) -> Finding:
    """Judge docker's file.

    Args:
        path: The daemon.json that was read, or would have been.
        program: The program that it names for scrun; "" if that is unclear, None if it names none.
        usable: Whether the program exists and can be executed.
    """
    if program is None:
        return Finding(
            "docker", "warn", f"does not know scrun ({path})", "run `scrun install docker`"
        )
    if not usable:
        text = f"{path}: runtimes.scrun: {program or 'more than a path'} cannot be run"
        return Finding(
            "docker", "warn", text, "correct it, or remove it and run scrun install docker"
        )
    return Finding("docker", "ok", f"{path}: knows scrun as {program}")


def judge_storage(storage: podman.Storage, engine: str, why_no_owners: str = "") -> Finding:
    """Judge podman's storage.

    Args:
        storage: The storage.
        engine: The engine of containers.
        why_no_owners: Why files there cannot belong to the user's subordinate ids, or "".
    """
    name, driver = "podman's storage", storage.driver
    if why_no_owners:
        return Finding(
            name,
            "warn",
            f"{storage.graphroot}: files there cannot have an image's users ({why_no_owners})",
            "set graphroot in storage.conf to a file system where they can, such as a local disk; "
            "NFS does not work",
        )
    if engine != "slurm" or driver in podman.WITHOUT_COPIES:
        return Finding(name, "ok", f"driver {driver}")
    what, _, remedy = podman.STORAGE.partition("; ")
    return Finding(name, "warn", f"driver {driver}: {what}", remedy)


async def _podman(call: DoctorCall, report: Reporter) -> None:
    if call.which("podman") is None:
        report(Finding("podman", "ok", "not installed"))
        report(Finding("podman's storage", "ok", "podman is not installed"))
        return
    report(await trio.to_thread.run_sync(_look_at_storage, call, abandon_on_cancel=True))
    report(await trio.to_thread.run_sync(_look_at_podman, call, abandon_on_cancel=True))


def _look_at_storage(call: DoctorCall) -> Finding:
    own = None if os.geteuid() == 0 else home_config(call.child_env.environment)
    try:
        environment = call.child_env.environment
        storage = podman.storage(environment, own, home(environment))
    except SettingsError as error:
        return Finding("podman's storage", "warn", str(error), "correct that file")
    there = storage.graphroot
    while not os.path.lexists(there) and there != "/":
        there = os.path.dirname(there)
    why = why_no_owners(there) if own and os.access(there, os.W_OK) else ""
    return judge_storage(storage, call.engine.name if call.engine else "", why)


def _look_at_podman(call: DoctorCall) -> Finding:
    own = None if os.geteuid() == 0 else home_config(call.child_env.environment)
    try:
        engine = podman.merged(podman.files(call.child_env.environment, own))
    except SettingsError as error:
        return Finding("podman", "warn", str(error), "correct that file")
    usable = (path for path in podman.programs(engine) if os.access(path, os.X_OK))
    return judge_podman(engine, next(usable, None))


async def _docker(call: DoctorCall, report: Reporter) -> None:
    if call.which("dockerd") is None:
        report(Finding("docker", "ok", "not installed"))
        return
    report(await trio.to_thread.run_sync(_look_at_docker, call, abandon_on_cancel=True))


def _look_at_docker(call: DoctorCall) -> Finding:
    """Check the user's own file, for rootless docker, and the machine's."""
    own = None if os.geteuid() == 0 else home_config(call.child_env.environment)
    paths = [InstallTarget(own).daemon] if own else []
    paths.append(InstallTarget(None).daemon)
    try:
        for path in paths:
            text = files.read(path)
            program = docker.entry(text, path) if text is not None else None
            if program is not None:
                return judge_docker(path, program, usable=launcher_works(program))
    except SettingsError as error:
        return Finding("docker", "warn", str(error), "correct that file")
    return judge_docker(" and ".join(paths), None, usable=False)


def launcher_works(program: str) -> bool:
    """Return whether a program exists and can be executed."""
    return os.path.isfile(program) and os.access(program, os.X_OK)


async def _packages(call: DoctorCall, report: Reporter) -> None:
    report(await trio.to_thread.run_sync(_look_at_packages, call, abandon_on_cancel=True))


def _look_at_packages(call: DoctorCall) -> Finding:
    """Check for the programs that containers need, and those of engines that are to know scrun."""
    root = os.geteuid() == 0
    own = None if root else home_config(call.child_env.environment)
    engines = []
    for name in ENGINES:
        try:
            if any(InstallTarget(place).has(name) for place in dict.fromkeys((own, None))):
                engines.append(name)
        except SettingsError:
            pass  # the engine's own check says so
    here = not call.by_slurm and call.settings.local.oci_conf is None
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
        return Finding("packages", "ok", "all that is needed here is installed")
    return Finding("packages", "warn", f"not installed: {needs.names(lacking)}", remedy)


CHECKS = (
    Check(("podman", "podman's storage"), _podman),
    Check(("docker",), _docker),
    Check(("packages",), _packages),
)
