"""Scripts of a plugstack.conf around containers, on both engines: spank-lua(8)."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import CHECKOUT
from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.nightly import nightly
from tests.harness.site import Site
from tests.harness.wait import wait_until

pytestmark = pytest.mark.shares_sites

PLACES = ("local-user", "slurm-user")
DATA = CHECKOUT / "tests" / "data"

# every callback notes itself, with its context and the status of the task
ALL = """
local function note(text)
	local file = io.open("@BASE@/b/marks", "a")
	file:write(text, "\\n")
	file:close()
end
for _, name in ipairs({ "init", "slurmd_init", "job_prolog", "init_post_opt", "local_user_init",
	"user_init", "task_init_privileged", "task_init", "task_post_fork", "task_exit", "job_epilog",
	"slurmd_exit", "exit" }) do
	_G["slurm_spank_" .. name] = function(spank)
		local status, code, signal = spank:get_item("S_TASK_EXIT_STATUS")
		local ended = status and (" " .. status .. " " .. tostring(code or signal)) or ""
		note(spank.context .. " " .. name .. ended)
		if step then step(spank, name) end
	end
end
"""

OPTION = """
spank_options = {
	{ name = "greet-whom", usage = "Greet somebody", has_arg = 1, arginfo = "WHOM", cb = "greet" },
}
function greet(val, whom, remote)
	if whom == "nobody" then SPANK.log_error("nobody is there") return SPANK.FAILURE end
	greeted = whom
end
function slurm_spank_init_post_opt(spank)
	if greeted and spank.context ~= "remote" then spank:setenv("GREETED", greeted, 1) end
end
"""

WithStack = Callable[..., Site]


@pytest.fixture
def with_stack(make_site: MakeSite) -> WithStack:
    """Makes a place with a script, and a plugstack.conf; @BASE@ is the place's directory."""

    def make(
        place: str, script: str, how: str = "required lua.so failonerror @BASE@/a.lua"
    ) -> Site:
        site = make_site(place, settings="idle_timeout = 5\n")
        (site.base / "a.lua").write_text(script.replace("@BASE@", str(site.base)))
        stack = site.base / "plugstack.conf"
        stack.write_text(how.replace("@BASE@", str(site.base)) + "\n")
        with open(site.base / "scrun.toml", "a") as settings:
            settings.write(f'[spank]\nplugstack = "{stack}"\n')
        return site

    return make


def marks(site: Site) -> list[str]:
    path = site.base / "b" / "marks"
    return path.read_text().splitlines() if path.exists() else []


def ran(site: Site, script: str = "true", **how: object) -> tuple[int, str]:
    """Run a container to its end; return its status and what it has written."""
    life = site.shell(script, **how).created()
    status = life.start().wait()
    output = life.output()
    life.delete()
    return status, output


# --- when what is called


@pytest.mark.covers("spank-lua DESCRIPTION: scripts in the place of compiled plugins, options")
@pytest.mark.covers("spank-lua SPANK LUA API: thirteen functions")
@pytest.mark.parametrize(("script", "ended"), [("exit 3", "768 3"), nightly("true", "0 0")])
def test_every_callback_in_slurm_s_order(with_stack: WithStack, script: str, ended: str) -> None:
    """SPANK LUA API: on this machine all of them, with the task's real exit status."""
    site = with_stack("local-user", ALL)
    ran(site, script)
    assert marks(site) == [
        "allocator init",
        "allocator init_post_opt",
        "slurmd slurmd_init",
        "job_script job_prolog",
        "allocator local_user_init",
        "remote init",
        "remote init_post_opt",
        "remote user_init",
        "remote task_init_privileged",
        "remote task_init",
        "remote task_post_fork",
        f"remote task_exit {ended}",
        "remote exit",
        "allocator exit",
        "job_script job_epilog",
        "slurmd slurmd_exit",
    ]


@pytest.mark.covers("spank-lua S_TASK_EXIT_STATUS: status, exitcode, termsig, core")
def test_the_signal_that_ended_a_task(with_stack: WithStack) -> None:
    """S_TASK_EXIT_STATUS: that of a task that was killed."""
    site = with_stack("local-user", ALL)
    life = site.shell("sleep 1000").created().start().wait_for("running")
    life.kill("KILL")
    life.ends(137)
    assert "remote task_exit 9 9" in marks(site)


@pytest.mark.covers("spank-lua DESCRIPTION: scripts in the place of compiled plugins, options")
def test_the_allocator_context_on_slurm(with_stack: WithStack) -> None:
    """SPANK LUA API: the nodes' contexts are Slurm's own."""
    site = with_stack("slurm-user", ALL)
    assert ran(site, "exit 4")[0] == 4
    assert marks(site) == [
        f"allocator {n}" for n in ("init", "init_post_opt", "local_user_init", "exit")
    ]


@pytest.mark.covers("spank-lua SPANK LUA API: thirteen functions")
@pytest.mark.parametrize("place", PLACES)
def test_a_container_that_is_deleted_before_its_start(with_stack: WithStack, place: str) -> None:
    site = with_stack(place, ALL)
    site.shell("true").created().delete()
    ends = ["allocator exit", "job_script job_epilog", "slurmd slurmd_exit"]
    assert marks(site)[-3:] == ends if place == "local-user" else marks(site)[-1:] == ends[:1]
    assert not any("remote" in mark for mark in marks(site))


@pytest.mark.parametrize("place", PLACES)
def test_no_process_waits_for_what_is_never_called(with_stack: WithStack, place: str) -> None:
    site = with_stack(
        place, "function slurm_spank_init() end function slurm_spank_user_init() end"
    )
    life = site.shell("sleep 1000").created().start().wait_for("running")

    def workers() -> list[object]:
        return [
            process
            for process in site.processes()
            if "scrun.supervisor.worker.main" in str(process)
        ]

    wait_until("the worker is gone", lambda: not workers())
    life.kill("KILL")
    life.wait()
    life.delete()


def test_a_container_that_is_given_up_while_it_waits(with_stack: WithStack) -> None:
    site = with_stack("slurm-user", ALL)
    with cluster.full(site.user):
        life = site.shell("true")
        wait_until("it is pending", lambda: (site.root / life.id / "state.json").exists())
        wait_until("init_post_opt", lambda: "allocator init_post_opt" in marks(site))
        wait_until("a job waits", site.jobs)
        life.delete()
    assert marks(site) == [f"allocator {name}" for name in ("init", "init_post_opt", "exit")]


@pytest.mark.parametrize("place", PLACES)
def test_a_process_that_was_killed(with_stack: WithStack, place: str) -> None:
    """It takes nothing with it: the container goes on, and its status is its own."""
    site = with_stack(place, "function slurm_spank_exit() end")
    life = site.shell("echo up; sleep 2; exit 5").created().start()
    life.says("up")  # its state is `running` while functions of the task are still to be called
    [worker] = [
        process for process in site.processes() if "scrun.supervisor.worker" in str(process)
    ]
    os.kill(worker.pid, signal.SIGKILL)
    life.ends(5)


def test_what_is_called_without_any_end(with_stack: WithStack) -> None:
    text = "".join(
        f"function slurm_spank_{name}() local f = io.open('@BASE@/b/marks', 'a') "
        f"f:write('{name}\\n') f:close() end "
        for name in ("job_prolog", "local_user_init", "task_init", "job_epilog")
    )
    site = with_stack("local-user", text)
    ran(site)
    assert marks(site) == ["job_prolog", "local_user_init", "task_init", "job_epilog"]


@pytest.mark.covers("spank-lua DESCRIPTION: scripts in the place of compiled plugins, options")
def test_a_demonstration(with_stack: WithStack) -> None:
    """DESCRIPTION: what spank-lua's own demonstration calls: posix, programs, and a log line."""
    site = with_stack(
        "local-user",
        """
        local posix = require("posix")
        local function first_line(program)
            local pipe = io.popen(program)
            local text = pipe:read("*a")
            pipe:close()
            return (text:gsub("\\n$", ""))
        end
        for _, name in ipairs({ "init", "local_user_init", "task_init" }) do
            _G["slurm_spank_" .. name] = function(spank)
                SPANK.log_info("ctx:%s host:%s uid:%s %s", spank.context,
                    first_line("/bin/hostname"), first_line("/bin/id -u"), posix.getpid("uid"))
                return 0
            end
        end
        """,
    )
    life = site.shell("true").created().start()
    life.wait()
    uid, host = site.user.uid, os.uname().nodename
    lines = (site.root / life.id / "log").read_text().splitlines()
    said = [line.partition("a.lua: ")[2].rstrip('"') for line in lines if "a.lua: " in line]
    assert said == [
        f"ctx:{context} host:{host} uid:{uid} {uid}"
        for context in ("allocator", "allocator", "remote", "remote")
    ]
    life.delete()


# --- scrun lua check


def test_lua_check_knows_them(with_stack: WithStack) -> None:
    site = with_stack("local-user", OPTION)
    path = str(site.base / "a.lua")
    assert site.must("lua", "check", path).splitlines() == [
        f"{path}: loaded by Lua 5.4",
        "slurm_spank_init_post_opt: defined",
        "option --greet-whom: Greet somebody",
    ]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (
            "function slurm_spank_inti() end",
            "slurm_spank_inti: no such callback",
        ),
        ("spank_options = {{ name = 'x' }}", 'Required field "usage" missing'),
        ("SPANK.log_info('x'", "a.lua:1:"),
    ],
)
def test_lua_check_says_what_is_wrong(with_stack: WithStack, script: str, reason: str) -> None:
    site = with_stack("local-user", script)
    done = site.run("lua", "check", str(site.base / "a.lua"))
    assert done.returncode == 1
    assert reason in done.stderr


# --- what they set


@pytest.mark.covers("spank-lua getenv, setenv, unsetenv")
@pytest.mark.parametrize("place", PLACES)
def test_variables_reach_the_container(with_stack: WithStack, place: str) -> None:
    """setenv, job_control_setenv: the job's environment, and SLURM_SPANK_*."""
    site = with_stack(
        place,
        """
        function slurm_spank_init_post_opt(spank)
            if spank.context == "remote" then return end
            assert(spank:setenv("EARLY", "a, b='c'", 1))
            assert(spank:setenv("RAW", "\\254", 1))
            assert(spank:job_control_setenv("LIMIT", 5, 1))
        end
        function slurm_spank_local_user_init(spank)
            require("posix").setenv("JOB", tostring(spank:get_item("S_JOB_ID")))
        end
        """,
    )
    life = site.shell("env").created()
    log = (site.root / life.id / "log").read_text()
    assert ("SPANK_LIMIT: set for the container as SLURM_SPANK_*" in log) is (
        place == "slurm-user"
    )
    life.start().wait()
    lines = life.output().splitlines()
    assert "EARLY=a, b='c'" in lines
    assert not any(line.startswith("RAW=") for line in lines)
    assert "SLURM_SPANK_LIMIT=5" in lines
    [job] = [line for line in lines if line.startswith("JOB=")]
    assert int(job.removeprefix("JOB=")) > 0
    # all else is as without scripts
    assert not any(line.startswith("SCRUN_") for line in lines)


@pytest.mark.covers("spank-lua getenv, setenv, unsetenv")
def test_variables_of_a_task(with_stack: WithStack) -> None:
    """getenv, setenv, unsetenv in remote context: those of config.json."""
    site = with_stack(
        "local-user",
        """
        function slurm_spank_task_init(spank)
            assert(spank:getenv("SITE") == "@BASE@")
            assert(spank:setenv("SITE", "other", 1) and spank:unsetenv("GONE"))
            assert(spank:get_item("S_JOB_ENV").SITE == "other")
            assert(spank:get_item("S_JOB_ARGV")[3] == "echo $SITE; env")
        end
        """,
    )
    config = site.config("sh", "-c", "echo $SITE; env")
    config["process"]["env"].append("GONE=1")
    life = site.life(config=config).created()
    assert life.start().wait() == 0
    lines = life.output().splitlines()
    assert lines[0] == "other"
    assert "SITE=other" in lines
    assert "GONE=1" not in lines
    # the submitted bundle is as it was
    assert str(site.base) in (life.bundle / "config.json").read_text()


@pytest.mark.covers("spank-lua job_control_setenv, job_control_getenv, job_control_unsetenv")
@pytest.mark.covers("spank-lua getopt")
@pytest.mark.covers("spank-lua EXAMPLE: no-memory-overcommit")
def test_the_prolog_s_environment(with_stack: WithStack) -> None:
    """job_control_setenv: with SPANK_ in front, for job_prolog and job_epilog on this machine."""
    site = with_stack(
        "local-user",
        (DATA / "spank-lua.8.lua").read_text()
        + """
        for _, name in ipairs({ "prolog", "epilog" }) do
            _G["slurm_spank_job_" .. name] = function(spank)
                local file = io.open("@BASE@/b/marks", "a")
                file:write(name, " ", tostring(os.getenv("SPANK_NO_OVERCOMMIT")), " ",
                    tostring(spank:getopt(spank_options[1])), "\\n")
                file:close()
            end
        end
        """,
    )
    ran(site, environment={"SCRUN_OPTION_NO_MEMORY_OVERCOMMIT": "yes"})
    assert marks(site) == ["prolog 1 true", "epilog 1 true"]
    ran(site)
    assert marks(site)[2:] == ["prolog nil nil", "epilog nil nil"]


# --- options


@pytest.mark.covers("spank-lua options given to srun, salloc, sbatch")
@pytest.mark.parametrize("place", PLACES)
def test_options_by_all_ways(with_stack: WithStack, place: str) -> None:
    """SPANK OPTIONS: the command line, the environment, an annotation."""
    site = with_stack(place, OPTION)
    show = 'echo "[$GREETED]"'
    assert ran(site, show)[1] == "[]\n"
    assert ran(site, show, environment={"SCRUN_OPTION_GREET_WHOM": "/a b"})[1] == "[/a b]\n"
    config = site.config("sh", "-c", show)
    config["annotations"] = {"slurm.option.greet-whom": "world"}
    life = site.life(config=config).created()
    life.start().wait()
    assert life.output() == "[world]\n"
    bundle = site.bundle_of("sh", "-c", show)
    for words in (["--greet-whom", "you all"], ["--greet-whom=you all"]):
        done = site.run("run", "--bundle", bundle, *words, "typed")
        assert (done.returncode, done.stdout, done.stderr) == (0, "[you all]\n", "")


@pytest.mark.covers('spank-lua EXAMPLE: "Options provided by plugins:"')
def test_options_in_the_help(with_stack: WithStack) -> None:
    """EXAMPLE: "Options provided by plugins:"."""
    site = with_stack("local-user", OPTION)
    for command in ("create", "run"):
        text = site.must(command, "--help")
        _, _, ours = text.partition("\nOptions provided by plugins:\n")
        assert ours == "      --greet-whom=WHOM       Greet somebody\n"
        assert site.must("help", command) == text
    assert "plugins" not in site.must("start", "--help")


@pytest.mark.covers("spank-lua options given to srun, salloc, sbatch")
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--greet-whom"], "option --greet-whom needs a value, WHOM"),
        nightly(["--greet"], "unknown option '--greet'"),
        nightly(["--greet-whom=x", "--no=1"], "unknown option '--no'"),
        (["--greet-whom=nobody"], "greet of --greet-whom=nobody returned -1: nobody is there"),
    ],
)
def test_options_that_are_wrong(with_stack: WithStack, words: list[str], reason: str) -> None:
    site = with_stack("local-user", OPTION)
    bundle = site.bundle_of("true")
    assert reason in site.fails("run", "--bundle", bundle, "c1", *words)


@pytest.mark.covers("security get words from an image")
@pytest.mark.covers("security plugstack.conf and its scripts")
@pytest.mark.covers("spank-lua options given to srun, salloc, sbatch")
def test_an_image_cannot_say_anything(with_stack: WithStack) -> None:
    site = with_stack("local-user", OPTION)
    config = site.config("true")
    config["annotations"] = {"slurm.option.greet-whom": "$(id)"}
    assert "is not accepted from an image" in site.life(config=config).refused()
    config["annotations"] = {"slurm.option.greet-whim": "you"}
    assert "such an option (is it slurm.option.greet-whom?)" in site.life(config=config).refused()
    config["annotations"] = {}
    config["process"]["env"].append("SCRUN_OPTION_GREET_WHOM=nobody")
    life = site.life(config=config).created()
    assert life.start().wait() == 0


# --- what fails


@pytest.mark.covers("spank-lua spank(7): required, optional")
@pytest.mark.parametrize(
    "callback",
    [
        "init",
        nightly("init_post_opt"),
        nightly("local_user_init"),
        nightly("job_prolog"),
        "slurmd_init",
    ],
)
@pytest.mark.parametrize("place", PLACES)
def test_required(with_stack: WithStack, place: str, callback: str) -> None:
    """CONFIGURATION: the container is refused in one line; nothing stays."""
    text = f"function slurm_spank_{callback}() SPANK.log_error('because') return -1 end"
    site = with_stack(place, text, "required lua.so @BASE@/*.lua")
    if place == "slurm-user" and callback in ("job_prolog", "slurmd_init"):
        assert ran(site)[0] == 0  # the nodes'
        return
    said = site.shell("true").refused()
    assert said == (
        f"scrun: {site.base}/a.lua: slurm_spank_{callback} returned -1: because (required by "
        f"{site.base}/plugstack.conf:1)\n"
    )


@pytest.mark.covers("spank-lua spank(7): required, optional")
@pytest.mark.parametrize("callback", [nightly("user_init"), "task_init"])
def test_required_at_the_start(with_stack: WithStack, callback: str) -> None:
    site = with_stack("local-user", f"function slurm_spank_{callback}() return -1 end")
    life = site.shell("echo it runs").created().start()
    assert life.wait() == 125
    assert life.output() == ""
    assert (
        f"slurm_spank_{callback} returned -1" in life.state()["annotations"]["org.scrun.message"]
    )


@pytest.mark.covers("spank-lua spank(7): required, optional")
@pytest.mark.parametrize("place", PLACES)
def test_optional(with_stack: WithStack, place: str) -> None:
    """CONFIGURATION: what fails is logged, and the container runs."""
    text = "function slurm_spank_init() return -1 end function slurm_spank_exit() error('x') end"
    site = with_stack(place, text, "optional lua.so failonerror @BASE@/a.lua")
    life = site.shell("exit 5").created()
    log = (site.root / life.id / "log").read_text()
    assert "slurm_spank_init returned -1 (ignored: optional in" in log
    life.start().ends(5)


def test_a_broken_plugstack_conf(with_stack: WithStack) -> None:
    site = with_stack("local-user", "", "bogus lua.so /a")
    reason = f"{site.base}/plugstack.conf:1: bogus: required, optional or include expected"
    assert reason in site.shell("true").refused()
    help_text = site.must("create", "--help")
    assert help_text.endswith(f"Options provided by plugins: {reason}\n")


# --- beside Slurm's own lua.so


@contextmanager
def plugstack_of_slurm(line: str, prolog: str = "") -> Iterator[None]:
    """A cluster with a line in plugstack.conf, and perhaps a prolog."""
    conf = Path(cluster.slurm_conf())
    stack = conf.with_name("plugstack.conf")
    before = stack.read_text(), conf.read_text()
    try:
        stack.write_text(line + "\n")
        if prolog:
            conf.write_text(f"{before[1]}Prolog={prolog}\n")
            cluster.slurm("scontrol", "reconfigure")
            time.sleep(1)  # slurmd says nothing when it has read it
        yield
    finally:
        stack.write_text(before[0])
        conf.write_text(before[1])
        cluster.slurm("scontrol", "reconfigure")


def test_a_lua_so_that_is_not_there(make_site: MakeSite) -> None:
    """CONFIGURATION: `optional` is ignored by Slurm, and the scripts run here."""
    site = make_site("slurm-user", settings="idle_timeout = 5\n")
    (site.base / "a.lua").write_text(ALL.replace("@BASE@", str(site.base)))
    with plugstack_of_slurm(f"optional lua.so {site.base}/a.lua"):
        assert ran(site, "exit 6")[0] == 6
    assert marks(site)[:2] == ["allocator init", "allocator init_post_opt"]


@pytest.mark.covers("spank-lua job_control_setenv, job_control_getenv, job_control_unsetenv")
def test_slurm_s_own_lua_so(make_site: MakeSite) -> None:
    """job_control_setenv, SPANK OPTIONS: Slurm's tools load it, and get the options.

    So the prolog has SPANK_NO_OVERCOMMIT, the nodes know the option, and nothing is done twice.
    """
    site = make_site("slurm-user", settings="idle_timeout = 5\n")
    plugin, notes, prolog = (site.base / name for name in ("lua.so", "b/marks", "prolog"))
    compiler = shutil.which("cc")
    assert compiler, "tools/setup --test installs one"
    source = DATA / "spank_stand_in.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", plugin, source], check=True, timeout=60)
    seen = site.base / "b" / "prolog"
    seen.touch()
    prolog.write_text(f"#!/bin/sh\nenv | grep ^SPANK_ >> {seen}\nexit 0\n")
    prolog.chmod(0o755)
    notes.touch()
    os.chmod(notes, 0o666)
    script = site.base / "a.lua"
    script.write_text((DATA / "spank-lua.8.lua").read_text())
    with plugstack_of_slurm(f"required {plugin} {script} {notes}", str(prolog)):
        site.environment["SCRUN_OPTION_NO_MEMORY_OVERCOMMIT"] = "yes"
        script.write_text(script.read_text() + "function slurm_spank_exit() error('twice') end\n")
        assert ran(site, "exit 7")[0] == 7
        wait_until("the prolog has run", lambda: "OVERCOMMIT" in seen.read_text())
    assert "SPANK_NO_OVERCOMMIT=1" in seen.read_text().splitlines()
    # 3 is salloc, 2 the node
    assert "3 here" in marks(site)
    assert any(mark.startswith("2 remote") for mark in marks(site))
