"""Checks on a node, in a test job that the engine allocates: each is an item of one trial."""

import contextlib
import math
import os
import re
import shlex
import tempfile
import uuid
from collections.abc import Iterator, Sequence

import msgspec
import trio

from scrun.core.errors import EngineError, ScrunError, SettingsError, StagingError
from scrun.model.states import Ending
from scrun.model.waiting import Waiting
from scrun.settings.file.load import Log
from scrun.settings.oci_conf.commands import program_of
from scrun.settings.script import find_script
from scrun.supervisor.children.pumps import messages
from scrun.supervisor.contracts.engine import Engine, Job, JobRequest
from scrun.supervisor.contracts.target import Target
from scrun.supervisor.core.threads import in_thread
from scrun.supervisor.log.journal import Journal
from scrun.supervisor.programs.doctor.call import (
    Check,
    DoctorCall,
    Done,
    Reporter,
    read_oci_conf,
)
from scrun.supervisor.programs.doctor.cluster import ask_munge, by_own_shim, ping
from scrun.supervisor.programs.doctor.containers import NAME as CONTAINER
from scrun.supervisor.programs.doctor.containers import own_root, try_container
from scrun.supervisor.programs.doctor.findings import Finding, fail, first, ok, warn
from scrun.supervisor.staging.id_maps import with_ids
from scrun.supervisor.staging.on_node import ROOTLESS
from scrun.supervisor.staging.owner import directory_for

NAMES = (
    *("job", "step", "runtime on a node", "shared directory"),
    *("images on a node", "users of a container", CONTAINER),
)
_PATIENCE = 60.0
_STEP = 60.0
_LEND = (
    "programs that change users (apt, nginx, postgres, USER) fail in such a container: install "
    "uidmap on the nodes, with the same /etc/subuid and /etc/subgid there and here"
)
_NO_PYTHON = "Python 3.6 or newer is missing, which a shim needs"


class NodeReport(msgspec.Struct, frozen=True):
    """What a step says of its node; "" is missing there.

    Attributes:
        runtime: The first line of the runtime's `--version`.
        token: The content of the file that was written here.
        python: The version of Python; only a shim needs it.
        overlay, squashfs: What mounts these; else why it is `refused`.
    """

    node: str = "?"
    runtime: str = ""
    token: str = ""
    python: str = ""
    overlay: str = ""
    refused: str = ""
    squashfs: str = ""


# --root: as in `machine`
_ASK = """\
if command -v PROGRAM >/dev/null 2>&1; then
    echo "runtime $(
        { PROGRAM --root / --version 2>/dev/null || PROGRAM --version 2>&1; } | head -n 1
    )"
fi
"""


def script(program: str | None, file: str) -> str:
    """Return the script that prints a `NodeReport`."""
    asked = ""
    if program is not None:
        asked = _ASK.replace("PROGRAM", shlex.quote(program))
    return f'echo "node $SLURMD_NODENAME"\n{asked}echo "token $(cat {shlex.quote(file)})"\n'


_PYTHON = """\
PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
for p in python3 /usr/libexec/platform-python; do
    if command -v "$p" >/dev/null 2>&1; then echo "python $("$p" --version 2>&1)"; break; fi
done
"""
_RUNTIME = """\
for p in crun runc; do
    if said=$("$p" --root / --version 2>/dev/null); then
        echo "runtime $said" | head -n 1; break
    fi
done
"""


# the kernel makes a directory in `w` that its owner may not enter
_IMAGES = f"""\
fuse=; if [ -r /dev/fuse ] && [ -w /dev/fuse ]; then fuse=yes; fi
apart='{ROOTLESS} --mount' marks=userxattr,
if [ "$(id -u)" = 0 ]; then apart='unshare --mount' marks=; fi
place=$(mktemp -d "${{TMPDIR:-/tmp}}/scrun-doctor-XXXXXXXXXX") && (
    cd "$place" && mkdir l u w m || exit
    options=${{marks}}lowerdir=l,upperdir=u,workdir=w
    if said=$($apart mount -t overlay overlay -o "$options" m 2>&1); then
        echo 'overlay the kernel'
    elif [ -n "$fuse" ] && [ -n "$marks" ] && command -v fuse-overlayfs >/dev/null; then
        echo 'overlay fuse-overlayfs'
    else
        echo "refused $(echo "$said" | head -n 1)"
    fi
)
if [ -n "$place" ]; then chmod -R u+rwX "$place"; rm -rf "$place"; fi
if [ "$(id -u)" = 0 ]; then
    mount -t squashfs / / 2>/dev/null # the kernel then looks for its module
    if grep -q squashfs /proc/filesystems && [ -e /dev/loop-control ]; then
        echo 'squashfs the kernel'
    fi
elif [ -n "$fuse" ]; then
    for p in squashfuse_ll squashfuse; do
        if command -v "$p" >/dev/null; then echo "squashfs $p"; break; fi
    done
fi
"""
"""Prints by what the node mounts an overlay (`overlay`), or why not (`refused`), and images."""


def read(lines: Sequence[str]) -> NodeReport:
    """Parse what nodes printed, beside a site's scripts; the first node counts."""
    told = (line.partition(" ") for line in reversed(lines))
    found = {word: rest.strip() for word, _, rest in told}
    fields = NodeReport.__struct_fields__
    return NodeReport(**{word: found[word] for word in fields if word in found})


def judge_runtime(program: str | None, seen: NodeReport, conf: str, launch: str) -> Finding:
    """Judge the runtime of a node, of oci.conf if that is known, and who would call it."""
    remedy = f"install it there (apt install {os.path.basename(program or '')}), or correct {conf}"
    found = f"{seen.node}: {program}, {seen.runtime}"
    shim = launch == "shim"
    return first(
        (program is None, warn(f"{conf} does not name its program", "check oci.conf")),
        (not seen.runtime, fail(f"{seen.node}: {program} is not installed", remedy)),
        (launch == "container", ok(found)),
        (_has_python(seen), ok(f"{found}, called by a shim of {seen.python}")),
        (shim, fail(f"{seen.node}: {_NO_PYTHON}", "install it there")),
        otherwise=ok(f"{found}, called by Slurm: {_NO_PYTHON}"),
    )


def _has_python(seen: NodeReport) -> bool:
    version = re.match(r"Python (\d+)\.(\d+)", seen.python)
    return version is not None and (int(version[1]), int(version[2])) >= (3, 6)


def judge_node_for_shim(seen: NodeReport) -> Finding:
    if not _has_python(seen):
        return fail(f"{seen.node}: {_NO_PYTHON}", "install it there, or write an oci.conf")
    if not seen.runtime:
        text = f"{seen.node}: neither crun nor runc works there"
        return fail(text, "install one of them there (apt install crun)")
    return ok(f"{seen.node}: {seen.runtime}, called by a shim of {seen.python}")


def judge_directory(directory: str, seen: NodeReport, token: str, *, scripted: bool) -> Finding:
    """Judge by a token whether a node sees staged bundles; a scrun.lua may place them itself."""
    if seen.token == token:
        return ok(f"{directory} is also on {seen.node}")
    text = f"{directory} is not the same on {seen.node}"
    if scripted:
        return warn(text, "make scrun.lua stage somewhere else")
    remedy = "name a directory that the nodes share as `scratch` in the section [staging]"
    return fail(text, f"{remedy} of scrun.toml")


def judge_images(seen: NodeReport) -> Finding:
    if not seen.overlay:
        why = seen.refused or "it cannot be tried there"
        return warn(
            f"{seen.node}: no overlay ({why}), so each container gets a copy of its image",
            "install fuse-overlayfs there, and have udev make /dev/fuse for all",
        )
    if not seen.squashfs:
        return warn(
            f"{seen.node}: overlays by {seen.overlay}, no squashfs images (squashfuse, or "
            "/dev/fuse for users, is missing), so each container whose image it does not see gets "
            "a copy of that",
            "install squashfuse there, and have udev make /dev/fuse for all",
        )
    return ok(f"{seen.node}: overlays by {seen.overlay}, squashfs images by {seen.squashfs}")


async def _trial(call: DoctorCall, report: Reporter) -> None:
    if call.engine is None or not call.root:
        report("job", fail("cannot be asked for", "correct the failures above"))
        return
    if reason := await _silent(call):
        report("job", fail(f"not tried: {reason}", "correct that first"))
        return
    async with own_root(call) as directory:
        with contextlib.closing(Journal(os.path.join(directory, "@log"), Log(), "doctor")) as log:
            await _with_job(call, call.engine, report, directory, log)


async def _silent(call: DoctorCall) -> str:
    """Return why salloc cannot work (it would try for minutes), or ""."""
    if await call.lacks_conf():
        return f"{call.conf} cannot be read"
    if (await ask_munge(call)).status == "fail":
        return "munge does not work"
    with trio.move_on_after(10):
        if (found := await ping(call)) is None or found.status == "ok":
            return ""
    return "slurmctld does not answer"


async def _with_job(
    call: DoctorCall, engine: Engine, report: Reporter, directory: str, journal: Journal
) -> None:
    why_lost, why_pending = "", "Slurm did not say why"

    def lose(ending: Ending) -> None:
        nonlocal why_lost
        why_lost = ending.text or ending.reason
        scope.cancel()

    def wait(news: Waiting | None) -> None:
        nonlocal why_pending
        why_pending = news.reason if news else why_pending

    ours = {"SCRUN_JOB_NAME": "scrun-doctor", "SCRUN_TIMELIMIT": "5"}
    child_env = msgspec.structs.replace(call.child_env, environment={**ours, **call.environment})
    request = JobRequest(
        "doctor", child_env, call.directory, directory, journal,
        on_job_id=lambda job_id, owned: None, on_lost=lose, on_waiting=wait,
    )  # fmt: skip
    with trio.move_on_after(_PATIENCE) as scope:
        try:
            async with engine.allocate(request) as job:
                scope.deadline = math.inf
                where = job.environment.get("SLURM_JOB_NODELIST", "?")
                report("job", ok(f"{job.id}, on {where}"))
                await _in_job(call, engine, report, job, request)
        except ScrunError as error:
            report("job", fail(str(error), "check SCRUN_* and [slurm.defaults]"))
    if why_lost:
        report("job", fail(why_lost, "try again"))
        report("step", fail(why_lost, "try again"))
    elif scope.cancelled_caught:
        remedy = "wait for the queue, or try another partition (SCRUN_PARTITION)"
        report("job", warn(f"pending after {_PATIENCE:g} s: {why_pending}", remedy))


async def _in_job(
    call: DoctorCall, engine: Engine, report: Reporter, job: Job, request: JobRequest
) -> None:
    done = await _step(job, "true")
    if done.status:
        report("step", fail(done.said[-1], "check slurmd's log on that node"))
        return
    report("step", ok("`true` ran there"))
    conf, launch = call.oci_conf, call.settings.slurm.launch
    program = await in_thread(_program, call, abandon=True)
    shim = await in_thread(by_own_shim, call, abandon=True)
    with _token(call, request) as (directory, file, token):
        text = _RUNTIME + script(None, file) if shim else script(program, file)
        seen = read((await _step(job, _PYTHON + text + _IMAGES)).lines)
    runtime = judge_node_for_shim(seen) if shim else judge_runtime(program, seen, conf, launch)
    report("runtime on a node", runtime)
    shared = judge_directory(directory, seen, token, scripted=_scripted(call))
    report("shared directory", shared)
    report("images on a node", judge_images(seen))
    target = await engine.target(request.child_env)
    try:
        target, why = await with_ids(target, job, call.settings.staging.id_map, request)
        report("users of a container", judge_users(target, why))
    except StagingError as error:
        report("users of a container", fail(str(error), _LEND))
    report(CONTAINER, await try_container(call, job.environment))


def judge_users(target: Target, why: str) -> Finding:
    """Judge whether a container has all users of its image; `why`: why not, or ""."""
    if not target.rootless:
        return ok("all: the job runs as root")
    if target.ids is not None:
        return ok(f"{sum(each.size for each in target.ids.uids.whole)}, by newuidmap")
    return warn(why or 'one, as id_map = "single" says', _LEND)


async def _step(job: Job, script: str) -> Done:
    lines: list[str] = []
    with trio.move_on_after(_STEP):
        async with messages(lines.append) as output:
            status = await job.command(script, output)
        return Done(status, tuple(lines))
    raise EngineError(f"a step did not end within {_STEP:g} s")


def _program(call: DoctorCall) -> str | None:
    """Return the OCI runtime that the nodes call, from the oci.conf of this machine."""
    with contextlib.suppress(SettingsError):
        conf = read_oci_conf(call.oci_conf)
        return program_of(conf.run_time_run or conf.run_time_create or "")
    return None


def _scripted(call: DoctorCall) -> bool:
    with contextlib.suppress(SettingsError):
        return find_script(call.settings, "slurm") is not None
    return True


@contextlib.contextmanager
def _token(call: DoctorCall, request: JobRequest) -> Iterator[tuple[str, str, str]]:
    """Write a file in the directory of staged bundles; yield both, and the content."""
    directory = os.path.dirname(directory_for(call.settings.staging, request))
    made = not os.path.lexists(directory)
    os.makedirs(directory, mode=0o700, exist_ok=True)
    token = uuid.uuid4().hex
    fd, file = tempfile.mkstemp(prefix=".scrun-doctor-", dir=directory)
    try:
        os.write(fd, token.encode())
        os.close(fd)
        yield (call.root if directory == request.record else directory), file, token
    finally:
        os.unlink(file)
        if made:
            with contextlib.suppress(OSError):  # it is in use by now
                os.rmdir(directory)


CHECKS = (Check(NAMES, _trial, deadline=300),)
