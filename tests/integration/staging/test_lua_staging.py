"""Containers whose bundle a scrun.lua stages, on both engines."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.life import Life
from tests.harness.nightly import nightly
from tests.harness.processes import processes
from tests.harness.script import manual
from tests.harness.site import Site
from tests.harness.wait import wait_until, wait_while

pytestmark = [pytest.mark.covers("guide bundles are not transferred"), pytest.mark.shares_sites]

PLACES = ("local-user", "slurm-user")
MOSTLY_SLURM = (nightly("local-user"), "slurm-user")
"""For what comes before an engine, or does not depend on it."""
FINE = "function slurm_scrun_stage_in() return slurm.SUCCESS end\n"
FINE_OUT = "function slurm_scrun_stage_out() return slurm.SUCCESS end\n"

WithScript = Callable[..., Site]


@pytest.fixture
def with_script(make_site: MakeSite) -> WithScript:
    """Makes a place whose bundles a script stages; @BASE@ in it is the place's directory."""

    def make(place: str, script: str, more: str = "") -> Site:
        site = make_site(place, settings="idle_timeout = 5\n")
        path = site.base / "site.lua"
        path.write_text(script.replace("@BASE@", str(site.base)))
        with open(site.base / "scrun.toml", "a") as settings:
            settings.write(f'{more}\n[log]\nlevel = "debug"\n[lua]\nscript = "{path}"\n')
        return site

    return make


def life_of(site: Site, script: str, **how: object) -> Life:
    """Begin a container that can run as it is submitted, for no policy makes it fit."""
    return site.life(config=site.mapped("sh", "-c", script), **how)  # type: ignore[arg-type]


def jobs_ever(site: Site) -> set[str]:
    """Its jobs, and those that have ended not long ago."""
    if site.engine == "local":
        return set()
    asked = ("squeue", "-h", "-t", "all", "--name", site.base.name, "-o", "%i")
    return {*cluster.slurm(*asked).split()}


def marks(site: Site, name: str = "marks") -> list[str]:
    """What the script has noted with `echo … >> @BASE@/b/marks`."""
    path = site.base / "b" / name
    return path.read_text().splitlines() if path.exists() else []


NOTE = """
local function note(text) slurm.allocator_command("echo '" .. text .. "' >> @BASE@/b/marks") end
"""


@pytest.mark.covers("scrun(1) JOB ENVIRONMENT VARIABLES")
@pytest.mark.covers("scrun(1) scrun.lua: slurm_scrun_stage_in")
@pytest.mark.covers("scrun(1) EXAMPLE")
@pytest.mark.parametrize("form", ["require", nightly("slurm")])
@pytest.mark.parametrize("place", MOSTLY_SLURM)
def test_the_manuals_example(with_script: WithScript, place: str, form: str) -> None:
    site = with_script(place, manual(form))
    scratch = Path(f"/run/user/{site.user.uid}/slurm/scrun")
    life = life_of(site, "echo changed > /result; rm /bin/ls; env; exit 3").created()
    assert (scratch / life.id / "rootfs" / "bin" / "ls").exists()
    assert life.start().wait() == 3
    assert (site.rootfs / "result").read_text() == "changed\n"
    assert not (site.rootfs / "bin" / "ls").exists()
    assert not (scratch / life.id).exists()
    # what the example merges in on purpose, begins with the first entry
    lines = life.output().splitlines()
    assert any(line.startswith("SLURM_JOB_ID=") for line in lines)
    assert f"SCRUN_CONTAINER_ID={life.id}" in lines
    life.delete()


@pytest.mark.covers("scrun(1) scrun.lua: found, loaded")
@pytest.mark.covers("slurm-scrun the spool directory stays after a failed create")
@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("function slurm_scrun_stage_in( return 1 end", "site.lua:1:"),
        nightly("error('broken')", "site.lua:1: broken"),
        (FINE, "slurm_scrun_stage_out is missing"),
        nightly(FINE_OUT, "slurm_scrun_stage_in is missing"),
        nightly(FINE + FINE_OUT + "return slurm.ERROR", "the script returned -1"),
    ],
)
@pytest.mark.parametrize("place", MOSTLY_SLURM)
def test_a_script_that_cannot_be_loaded(
    with_script: WithScript, place: str, script: str, reason: str
) -> None:
    site = with_script(place, script)
    before = jobs_ever(site)
    life = life_of(site, "true")
    assert reason in life.refused()
    assert not (site.root / life.id).exists()
    assert jobs_ever(site) <= before


WITHOUT_ROOT = """
function slurm_scrun_stage_in(id, bundle)
    slurm.allocator_command("mkdir @BASE@/b/staged")
    slurm.allocator_command([[sed 's|"/[^"]*rootfs"|"/missing/root"|' ]] .. bundle
        .. "/config.json >@BASE@/b/staged/config.json")
    slurm.set_bundle_path("@BASE@/b/staged")
    slurm.set_root_path("/missing/root")
    return slurm.SUCCESS
end
"""


@pytest.mark.parametrize(
    "place", ["local-user", pytest.param("slurm-user", marks=pytest.mark.by_shim)]
)
def test_a_root_directory_that_is_missing(with_script: WithScript, place: str) -> None:
    """It is named, though crun 1.28 does not."""
    site = with_script(place, WITHOUT_ROOT + FINE_OUT)
    assert "/missing/root" in life_of(site, "true").refused()


@pytest.mark.covers("scrun(1) scrun.lua: found, loaded")
def test_a_script_that_is_named_has_to_be_there(make_site: MakeSite) -> None:
    site = make_site("local-user", settings='[lua]\nscript = "/no/scrun.lua"\n')
    assert "/no/scrun.lua: No such file or directory" in site.shell("true").refused()


def test_a_script_that_anybody_could_write(with_script: WithScript) -> None:
    site = with_script("local-user", FINE + FINE_OUT)
    (site.base / "site.lua").chmod(0o666)
    assert "everybody may write to it" in site.shell("true").refused()


@pytest.mark.covers("scrun(1) scrun.lua: slurm_scrun_stage_in")
@pytest.mark.covers("slurm-scrun stage_in failing: create exits 0, or never")
@pytest.mark.covers("slurm-scrun os.exit ends the anchor and leaks the job")
@pytest.mark.covers("slurm-scrun the spool directory stays after a failed create")
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("slurm.log_error('no scratch left') return slurm.ERROR", "returned -1: no scratch left"),
        nightly("return nil", "slurm_scrun_stage_in returned nothing"),
        ("local x = nil; return x.y", "attempt to index"),
        ("os.exit(0)", "os.exit(0) called"),
        nightly("slurm.set_bundle_path({})", "string expected, got table"),
    ],
)
@pytest.mark.parametrize("place", MOSTLY_SLURM)
def test_a_stage_in_that_fails(
    with_script: WithScript, place: str, body: str, reason: str
) -> None:
    body = body if "return" in body else body + " return slurm.SUCCESS"
    script = f"{NOTE}function slurm_scrun_stage_in() {body} end\n"
    script += "function slurm_scrun_stage_out() note('out') return slurm.SUCCESS end"
    site = with_script(place, script)
    assert reason in life_of(site, "true").refused()
    assert marks(site) == []
    site.settle()


@pytest.mark.parametrize("place", PLACES)
def test_a_bundle_that_is_a_file(with_script: WithScript, place: str) -> None:
    """Of a directory that is missing the nodes know more."""
    body = 'slurm.set_bundle_path("/etc/passwd") return slurm.SUCCESS'
    site = with_script(place, f"function slurm_scrun_stage_in() {body} end\n{FINE_OUT}")
    said = life_of(site, "true").refused()
    assert "called set_bundle_path with a file: /etc/passwd: name its directory" in said
    site.settle()


NOTING = f"""{NOTE}
function slurm_scrun_stage_in() note('in') return slurm.SUCCESS end
function slurm_scrun_stage_out() note('out') return slurm.SUCCESS end
"""


@pytest.mark.both_engines
@pytest.mark.covers("scrun(1) scrun.lua: slurm_scrun_stage_out")
@pytest.mark.parametrize("place", PLACES)
def test_stage_out_comes_after_every_end(with_script: WithScript, place: str) -> None:
    site = with_script(place, NOTING)
    life = life_of(site, "exit 4").created().start()
    assert life.wait() == 4
    assert marks(site) == ["in", "out"]
    life.delete()
    life = life_of(site, "sleep 600").created()
    life.delete()
    assert marks(site) == ["in", "out"] * 2
    life = life_of(site, "echo up; sleep 600").created().start().says("up")
    os.kill(life.anchor, signal.SIGINT)
    time.sleep(0.2)  # two at once are one
    os.kill(life.anchor, signal.SIGINT)
    assert life.wait() in (130, 137)
    assert marks(site) == ["in", "out"] * 3
    life.delete()
    site.settle()


def test_stage_out_comes_when_the_job_is_taken_away(with_script: WithScript) -> None:
    site = with_script("slurm-user", NOTING)
    life = life_of(site, "sleep 600").created().start()
    cluster.slurm("scancel", life.job_id)
    assert life.wait() == 122
    assert marks(site) == ["in", "out"]


@pytest.mark.parametrize("place", PLACES)
def test_stage_out_comes_when_the_supervisor_died(with_script: WithScript, place: str) -> None:
    site = with_script(place, NOTING)
    life = life_of(site, "sleep 600").created().start()
    site.kill_supervisors()
    assert life.wait() == 125
    assert marks(site) == ["in"]
    life.delete()
    assert marks(site) == ["in", "out"]


def test_stage_out_comes_when_another_supervisor_has_adopted_it(with_script: WithScript) -> None:
    """Before the engine learns of its end."""
    site = with_script("local-user", NOTING)
    life = life_of(site, "trap 'exit 7' USR1; echo up; while :; do sleep 0.05; done")
    life.created().start().says("up")
    [supervisor] = site.supervisors()
    os.kill(supervisor, signal.SIGKILL)
    life.kill("USR1")
    assert life.wait() == 7
    assert marks(site) == ["in", "out"]
    life.delete()
    assert marks(site) == ["in", "out"]
    site.settle()


@pytest.mark.covers("scrun(1) scrun.lua: slurm_scrun_stage_out")
@pytest.mark.parametrize(("status", "expected"), [(0, 125), (7, 7)])
@pytest.mark.parametrize("place", PLACES)
def test_a_stage_out_that_fails_is_no_success(
    with_script: WithScript, place: str, status: int, expected: int
) -> None:
    script = "function slurm_scrun_stage_out() slurm.error('disk full') return slurm.ERROR end"
    site = with_script(place, FINE + script)
    life = life_of(site, f"exit {status}").created().start()
    assert life.wait() == expected
    assert "disk full" in life.state()["annotations"]["org.scrun.message"]
    life.delete()


SLEEPING = f"""{NOTE}
function slurm_scrun_stage_in()
	note('in')
	slurm.allocator_command("trap '' TERM; (trap '' TERM; exec sleep 612) & sleep 613")
	return slurm.SUCCESS
end
function slurm_scrun_stage_out() note('out') return slurm.SUCCESS end
"""


def sleepers(*seconds: str) -> list[int]:
    """The processes of such a command."""
    return [
        process.pid
        for process in processes()
        if process.argv[:1] == ("sleep",) and process.argv[1] in seconds
    ]


def create_of(life: Life) -> int:
    """The pid of the `create` that waits."""
    [found] = [
        process.pid
        for process in life.site.processes()
        if "create" in process.argv
        and life.id in process.argv[-1:]
        and not any("subreaper" in argument for argument in process.argv)
    ]
    return found


@pytest.mark.covers("scrun(1) SIGNALS")
@pytest.mark.parametrize(
    "how", ["delete", nightly("INT"), "TERM", nightly("HUP"), "create INT", nightly("create TERM")]
)
@pytest.mark.parametrize("place", MOSTLY_SLURM)
def test_ended_while_a_command_of_stage_in_runs(
    with_script: WithScript, place: str, how: str
) -> None:
    site = with_script(place, SLEEPING)
    life = life_of(site, "true")
    wait_until("the command", lambda: len(sleepers("612", "613")) == 2)
    began = time.monotonic()
    if how == "delete":
        assert site.run("delete", "--force", life.id).returncode == 0
    else:
        pid = create_of(life) if "create" in how else life.state()["pid"]
        assert pid > 0  # 0 is whoever is in the group of this process
        os.kill(pid, signal.Signals["SIG" + how.split()[-1]])
        wait_while("the command", lambda: sleepers("612", "613"))
    assert sleepers("612", "613") == []
    assert time.monotonic() - began < (2 if how == "delete" else 1.5)
    assert life.create_status() != 0
    assert "Traceback" not in life.errors()
    assert marks(site) == ["in"]  # half a stage in is nothing to fetch back
    site.settle()


@pytest.mark.covers("scrun(1) SIGNALS")
def test_who_asks_again_does_not_wait_for_stage_out(with_script: WithScript) -> None:
    script = "function slurm_scrun_stage_out() slurm.allocator_command('sleep 614') end"
    site = with_script("slurm-user", FINE + script)
    life = life_of(site, "sleep 600").created()
    os.kill(life.anchor, signal.SIGINT)
    wait_until("stage_out", lambda: sleepers("614"))
    os.kill(life.anchor, signal.SIGINT)
    assert life.wait(5) == 130
    assert sleepers("614") == []
    life.delete()


@pytest.mark.covers("scrun(1) scrun.lua: remote_command")
@pytest.mark.parametrize("place", ["local-user", "slurm-user"])
def test_remote_command(with_script: WithScript, place: str) -> None:
    script = """
	function slurm_scrun_stage_in()
		local status, output = slurm.remote_command("echo $SLURMD_NODENAME; echo err >&2; exit 3")
		slurm.log_info(("status %d, %s"):format(status, output:gsub("\\n", ",")))
		status, output = slurm.remote_command("kill -9 $$")
		slurm.log_info(("killed %d"):format(status))
		return slurm.SUCCESS
	end
	"""
    site = with_script(place, script + FINE_OUT, "[slurm.defaults]\njob_num_nodes = 2")
    life = life_of(site, "true").created()
    log = (site.root / life.id / "log").read_text()
    if site.engine == "slurm":
        [line] = [line for line in log.splitlines() if "status 3" in line]
        assert "node1" in line
        assert "node2" in line
        assert line.count("err") == 2
        assert "srun" not in line
    else:
        assert "status 3, ,err," in log
    assert "killed 137" in log
    life.delete()


@pytest.mark.parametrize("place", ["local-user", "slurm-user"])
def test_remote_command_knows_its_container(with_script: WithScript, place: str) -> None:
    """As scrun(1) says of scripts: the variables of both, in the directory of create."""
    slurms = "$SLURM_JOB_NUM_NODES $SLURM_CONTAINER_ID $SLURM_CONTAINER"
    said = f"echo seen $SCRUN_CONTAINER_ID $SCRUN_BUNDLE {slurms} $(pwd)"
    body = f"local _, said = slurm.remote_command('{said}') slurm.log_info(said)"
    script = f"function slurm_scrun_stage_in() {body} return slurm.SUCCESS end\n"
    out = f"function slurm_scrun_stage_out() {body} return slurm.SUCCESS end\n"
    site = with_script(place, script + out)
    life = life_of(site, "true").created()
    log = (site.root / life.id / "log").read_text()
    words = f"seen {life.id} {life.bundle} 1 {life.id} {life.bundle} {site.base}"
    assert log.count(words) == 1, log
    assert life.start().wait() == 0
    wait_until("stage_out", lambda: (site.root / life.id / "log").read_text().count(words) == 2)
    life.delete()


@pytest.mark.covers("scrun(1) GLOBAL OPTIONS: --slurm-conf", "scrun(1) scrun.lua: found, loaded")
def test_the_script_beside_slurm_conf_is_found(make_site: MakeSite, tmp_path: Path) -> None:
    site = make_site("slurm-user")
    source = Path(cluster.slurm_conf())
    directory = site.base / "etc"
    directory.mkdir()
    (directory / "slurm.conf").write_text(f"include {source}\n")
    (directory / "scrun.lua").write_text("error('it was loaded')")
    environment = {"SLURM_CONF": str(directory / "slurm.conf")}
    assert "it was loaded" in life_of(site, "true", environment=environment).refused()
    with open(site.base / "scrun.toml", "a") as settings:
        settings.write('[lua]\nscript = "none"\n')
    assert "it was loaded" not in str(
        life_of(site, "true", environment=environment).create_status(30)
    )


VARIABLES = (
    "SLURM_JOB_ID", "SCRUN_OCI_VERSION", "SCRUN_CONTAINER_ID", "SCRUN_PID", "SCRUN_BUNDLE",
    "SCRUN_SUBMISSION_BUNDLE", "SCRUN_ANNOTATION_org.test.one", "SCRUN_PID_FILE", "SCRUN_SOCKET",
    "SCRUN_SPOOL_DIR", "SCRUN_SUBMISSION_CONFIG_FILE", "SCRUN_USER", "SCRUN_USER_ID",
    "SCRUN_GROUP", "SCRUN_GROUP_ID", "SCRUN_ROOT", "SCRUN_ROOTFS_PATH",
    "SCRUN_SUBMISSION_ROOTFS_PATH", "SCRUN_LOG_FILE", "SCRUN_LOG_FORMAT",
)  # fmt: skip


@pytest.mark.covers("scrun(1) OUTPUT ENVIRONMENT VARIABLES", "scrun(1) JOB ENVIRONMENT VARIABLES")
@pytest.mark.parametrize("place", PLACES)
def test_the_variables_of_a_script(with_script: WithScript, place: str) -> None:
    script = """
	function slurm_scrun_stage_in(id, bundle, spool, config, job, uid, gid, job_env)
		local file = assert(io.open(spool .. "/seen", "w"))
		for _, entry in ipairs(job_env) do file:write(entry, "\\n") end
		file:close()
		local _, out = slurm.allocator_command("env")
		file = assert(io.open(spool .. "/command", "w"))
		file:write(out)
		file:close()
		return slurm.SUCCESS
	end
	"""
    site = with_script(place, script + FINE_OUT)
    config = site.mapped("true")
    config["annotations"] = {"org.test.one": "value one"}
    life = site.life(config=config).created()
    spool = site.root / life.id / "spool"
    assert spool.stat().st_mode & 0o777 == 0o700
    for name in ("seen", "command"):
        pairs = dict(
            line.split("=", 1) for line in (spool / name).read_text().splitlines() if "=" in line
        )
        wanted = [variable for variable in VARIABLES if name == "seen" or "." not in variable]
        assert [variable for variable in wanted if not pairs.get(variable)] == []
        assert pairs["SCRUN_SPOOL_DIR"] == f"{spool}/"  # as in Slurm: names are appended
        assert pairs["SCRUN_CONTAINER_ID"] == life.id
        assert pairs["SCRUN_USER_ID"] == str(site.user.uid)
        assert pairs["SCRUN_PID"] == str(life.anchor)
        assert pairs["SCRUN_PID_FILE"] == str(life.pid_file)
    life.delete()
    assert not spool.exists()
