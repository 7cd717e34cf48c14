"""How a supervisor ends that is told to, and what it leaves to the next one."""

import contextlib
import functools
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator

import pytest

from tests import CHECKOUT
from tests.conftest import MakeSite
from tests.harness.installation import Installation
from tests.harness.life import Life
from tests.harness.processes import processes
from tests.harness.site import Site
from tests.harness.wait import wait_until, wait_while

_NOTHING = CHECKOUT / "docs" / "examples" / "plugin-none"
_STAGING = """function slurm_scrun_stage_in() return slurm.SUCCESS end
function slurm_scrun_stage_out()
    slurm.allocator_command("echo begin >>@BASE@/b/marks; sleep @LONG@; echo end >>@BASE@/b/marks")
    return slurm.SUCCESS
end
"""


@pytest.fixture(scope="module")
def installation() -> Iterator[Installation]:
    """With an engine on which nothing runs."""
    with contextlib.closing(Installation()) as made:
        made.install(_NOTHING)
        yield made


@pytest.fixture
def make_site(make_site: MakeSite, installation: Installation) -> MakeSite:
    return functools.partial(make_site, binary=installation.binary)


def write_script(site: Site, long: str) -> None:
    """Have a stage_out that takes so many seconds."""
    path = site.base / "site.lua"
    path.write_text(_STAGING.replace("@BASE@", str(site.base)).replace("@LONG@", long))


def scripted(make_site: MakeSite, long: str, settings: str = "") -> Site:
    """A place on this machine with that script; nothing runs there."""
    site = make_site("local-user", settings=f"idle_timeout = 5\n{settings}")
    write_script(site, long)
    toml = site.base / "scrun.toml"
    text = toml.read_text().replace('engine = "local"', 'engine = "none"')
    toml.write_text(f'{text}\n[lua]\nscript = "{site.base}/site.lua"\n')
    return site


def marks(site: Site) -> list[str]:
    path = site.base / "b" / "marks"
    return path.read_text().split() if path.exists() else []


def terminate(site: Site) -> int:
    """Send SIGTERM to the supervisor, and return its pid."""
    [supervisor] = site.supervisors()
    os.kill(supervisor, signal.SIGTERM)
    return supervisor


def being_staged_out(site: Site) -> tuple[Life, int]:
    """A container that is staged out because its supervisor was told to stop."""
    life = site.life("true").created()
    supervisor = terminate(site)
    wait_until("stage_out", lambda: marks(site) == ["begin"])
    return life, supervisor


def test_it_keeps_its_name_until_everything_is_undone(make_site: MakeSite) -> None:
    """A second one beside it would stage the same container out at the same time."""
    site = scripted(make_site, "4")
    life, supervisor = being_staged_out(site)
    state = life.state()
    assert state["status"] == "running"
    assert "org.scrun.ending_since" in state["annotations"]
    assert "ending since" in site.must("list")
    assert "it is being ended" in site.fails("start", life.id)
    assert "it is being ended, not running" in site.fails("exec", life.id, "true")
    assert f"supervisor {supervisor} is stopping" in site.life("true").refused()
    life.delete()
    assert marks(site) == ["begin", "end"]
    wait_while("its end", site.supervisors)
    assert marks(site) == ["begin", "end"]
    assert life.wait() == 125


def test_it_waits_for_what_is_undone(make_site: MakeSite) -> None:
    site = scripted(make_site, "2")
    life, _ = being_staged_out(site)
    wait_while("its end", site.supervisors)
    assert marks(site) == ["begin", "end"]
    assert life.state()["annotations"]["org.scrun.message"] == "the supervisor was told to stop"
    life.delete()
    assert marks(site) == ["begin", "end"]


@pytest.mark.parametrize("how", ["in time", "when told twice"])
def test_what_is_not_undone_then_is_left_to_the_next_one(make_site: MakeSite, how: str) -> None:
    site = scripted(make_site, "617", "stop_timeout = 2\n" if how == "in time" else "")
    life, supervisor = being_staged_out(site)
    if how == "when told twice":
        os.kill(supervisor, signal.SIGTERM)
    began = time.monotonic()
    wait_while("its end", site.supervisors, 7)
    assert time.monotonic() - began < (5 if how == "in time" else 2)
    # what it has started must not go on beside the next one's
    wait_while("its stage_out", lambda: [p for p in processes() if p.argv == ("sleep", "617")], 2)
    assert life.wait() == 125
    assert life.status == "stopped"
    said = site.must("logs", "--messages", life.id)
    assert "the supervisor ends before cleaning up stage_out of" in said
    write_script(site, "0")
    life.delete()
    assert marks(site) == ["begin", "begin", "end"]


def test_what_a_killed_one_has_started_comes_to_its_end_first(make_site: MakeSite) -> None:
    """Two that copy the same files at the same time lose data; a shell's programs outlive it."""
    site = scripted(make_site, "2")
    script = site.base / "site.lua"
    script.write_text(
        script.read_text().replace('("echo', '("(echo').replace('marks")', 'marks) & wait")')
    )
    life = site.life("true").created()
    supervisor = terminate(site)
    wait_until("stage_out", lambda: marks(site) == ["begin"])
    os.kill(supervisor, signal.SIGKILL)
    life.delete()
    assert marks(site) == ["begin", "end", "begin", "end"]


def test_nobody_undoes_what_another_one_is_undoing(make_site: MakeSite) -> None:
    """Not even when that one cannot be reached."""
    site = scripted(make_site, "8")
    life, supervisor = being_staged_out(site)
    record = json.loads((site.root / life.id / "state.json").read_text())
    assert (record["format"], record["supervisor"]["pid"]) == (2, supervisor)
    for socket in site.root.glob("@user-*"):
        socket.unlink()
    life.delete()  # it waits until the other one has done it
    assert marks(site) == ["begin", "end"]
    wait_while("its end", lambda: supervisor in site.supervisors())


def test_who_undoes_it_is_told(make_site: MakeSite) -> None:
    site = scripted(make_site, "30")
    life, supervisor = being_staged_out(site)
    for socket in site.root.glob("@user-*"):
        socket.unlink()
    said = site.fails("delete", life.id, timeout=60)
    # within a second it listens again, and answers itself
    assert f"leaning it up (stage_out of {site.base}/site.lua" in said or (
        f"still being cleaned up (stage_out of {site.base}/site.lua" in said
    )
    os.kill(supervisor, signal.SIGTERM)
    wait_while("its end", lambda: supervisor in site.supervisors())
    write_script(site, "0")
    life.delete()


_STUCK = {
    "salloc": """#!/bin/sh
[ "$1" != --version ] || exec {salloc} --version
echo 'salloc: Pending job allocation 7' >&2
exec sleep 600
""",
    "scancel": "#!/bin/sh\necho 'scancel: error: Unable to contact controller' >&2\nexit 1\n",
    "srun": "#!/bin/sh\nexit 1\n",
    "squeue": "#!/bin/sh\nexit 1\n",
}


def test_it_ends_in_time_while_slurm_does_not_answer(make_site: MakeSite) -> None:
    site = make_site("slurm-user", settings='stop_timeout = 3\n[slurm]\nbin = "@BIN@"\n')
    directory = site.base / "bin"
    directory.mkdir()
    for name, script in _STUCK.items():
        (directory / name).write_text(script.format(salloc=shutil.which("salloc")))
        (directory / name).chmod(0o755)
    settings = site.base / "scrun.toml"
    settings.write_text(settings.read_text().replace("@BIN@", str(directory)))
    life = site.life("true")
    job = site.root / life.id / "state.json"
    wait_until("the job", lambda: job.exists() and json.loads(job.read_text())["job_id"] == "7")
    [supervisor] = site.supervisors()
    terminate(site)
    wait_while("its end", lambda: supervisor in site.supervisors(), 8)
    assert life.create_status() != 0  # it has had another one try to delete the container
    record = json.loads(job.read_text())
    assert (record["job_id"], record["owns_job"]) == ("7", True)
    assert "job 7 may still be there" in site.fails("delete", life.id)
    (directory / "scancel").write_text("#!/bin/sh\necho $* >{}\n".format(site.base / "b" / "said"))
    life.delete()
    assert (site.base / "b" / "said").read_text() == "7\n"
