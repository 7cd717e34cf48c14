"""scrun lua: a script tried without a cluster, as root and as an ordinary user."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import CHECKOUT
from tests.harness.site import Site
from tests.harness.wait import wait_until

MANUAL = CHECKOUT / "tests" / "data" / "scrun.1.lua"
IN = "function slurm_scrun_stage_in(id, bundle, spool, config_file) %s return slurm.SUCCESS end\n"
OUT = "function slurm_scrun_stage_out() slurm.log_info('out') return slurm.SUCCESS end\n"
FINE = IN % "slurm.log_debug('in')" + OUT

users = pytest.mark.parametrize("site", ["local-root", "local-user"], indirect=True)
user = pytest.mark.parametrize("site", ["local-user"], indirect=True)
anywhere = pytest.mark.parametrize("site", ["local-user", "slurm-user"], indirect=True)


@pytest.fixture(autouse=True)
def temporary(site: Site) -> Iterator[None]:
    """Temporary files go where only this place's are."""
    site.environment["TMPDIR"] = str(site.base / "b")
    yield
    del site.environment["TMPDIR"]


def script(site: Site, text: str) -> str:
    """Write a script down; return its path as it is typed there."""
    path = site.base / "l" / "trial.lua"
    path.write_text(text)
    path.chmod(0o644)
    return "l/trial.lua"


def nothing_left(site: Site) -> None:
    """Neither a record nor a process, nor a supervisor that was not there."""
    assert not [entry for entry in os.listdir(site.base / "b") if entry.startswith("scrun-")]
    assert site.leftovers() == []


# --- check


@users
def test_check_the_manuals_example(site: Site) -> None:
    shutil.copy(MANUAL, site.base / "l" / "trial.lua")
    done = site.run("lua", "check", "l/trial.lua")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"{site.base}/l/trial.lua: loaded by Lua 5.4",
        "slurm_scrun_stage_in: defined",
        "slurm_scrun_stage_out: defined",
    ]
    assert done.stderr == "scrun: scrun.lua: initialized scrun.lua\n"
    nothing_left(site)


@anywhere
def test_check_whoever_stages_else(site: Site) -> None:
    """What the settings say of stagers is not about a script that is named."""
    done = site.run("--stager", "builtin", "lua", "check", script(site, IN % "" + OUT))
    assert (done.returncode, done.stdout.count("defined")) == (0, 2), done.stderr


@anywhere
def test_check_tells_what_is_missing(site: Site) -> None:
    done = site.run("lua", "check", script(site, OUT))
    assert done.returncode == 1
    assert "slurm_scrun_stage_in: missing\nslurm_scrun_stage_out: defined\n" in done.stdout
    assert done.stderr == (
        f"scrun: {site.base}/l/trial.lua: function slurm_scrun_stage_in is missing\n"
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (FINE + "x = = 1", "trial.lua:3: unexpected symbol near '='"),
        (FINE + "error('broken')", "trial.lua:3: broken"),
        (FINE + "return slurm.ERROR", "the script returned -1"),
        (FINE + "os.exit(0)", "os.exit(0) called"),
        (FINE + "slurm.remote_command('id')", "there is no job yet"),
    ],
)
@user
def test_check_refuses(site: Site, text: str, reason: str) -> None:
    assert reason in site.fails("lua", "check", script(site, text))


@user
def test_check_runs_what_is_to_be_run_at_load(site: Site) -> None:
    text = "print('printed') print(select(2, slurm.allocator_command('echo $HOME; pwd')))"
    done = site.run("lua", "check", script(site, FINE + text))
    assert done.returncode == 0
    home = site.environment["HOME"]
    assert sorted(done.stderr.splitlines()) == sorted(
        f"scrun: scrun.lua: {line}" for line in ("printed", home, str(site.base), "")
    )


@user
def test_the_version_is_that_of_the_settings(site: Site) -> None:
    settings = site.base / "l" / "scrun.toml"
    settings.write_text('[lua]\nversion = "5.1"\n')
    settings.chmod(0o644)
    site.user.give(settings)
    done = site.run(
        "lua", "check", script(site, FINE), environment={"SCRUN_CONFIG": str(settings)}
    )
    assert "loaded by Lua 5.1\n" in done.stdout


@user
def test_scripts_that_must_not_be_loaded(site: Site) -> None:
    assert "/l/none.lua: No such file" in site.fails("lua", "check", "l/none.lua")
    name = script(site, FINE)
    (site.base / name).chmod(0o666)
    assert "everybody may write to it" in site.fails("lua", "check", name)
    assert "everybody may write to it" in site.fails("lua", "run", name, "-b", _bundle(site))


@user
def test_what_cannot_be_meant(site: Site) -> None:
    assert "lua needs a check|run" in site.fails("lua")
    assert "lua needs a file" in site.fails("lua", "run")
    assert "unknown action 'test': use check or run" in site.fails("lua", "test", "x")
    assert "takes no bundle" in site.fails("lua", "check", "x", "--stage-out")


@user
def test_help(site: Site) -> None:
    rows = [" ".join(line.split()) for line in site.must("--help").splitlines()]
    assert "lua Check a scrun.lua, or run it on a bundle; needs no cluster" in rows
    assert "lua [LUA OPTIONS] <check|run> <file>" in site.must("lua", "-h")
    assert "--stage-out" in site.must("help", "lua")


# --- run


def _bundle(site: Site) -> str:
    return site.bundle_of("sh", "-c", "exit 3")


@users
@pytest.mark.parametrize("out", [False, True])
def test_run_the_manuals_example(site: Site, out: bool) -> None:
    shutil.copy(MANUAL, site.base / "l" / "trial.lua")
    bundle = _bundle(site)
    scratch = Path(f"/run/user/{site.user.uid}/slurm/scrun")
    before = {*scratch.iterdir()} if scratch.exists() else set()
    options = ["--stage-out"] if out else []
    done = site.run("lua", "run", "l/trial.lua", "--bundle", bundle, *options)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    new = {*scratch.iterdir()} - before
    try:
        assert f"bundle: {scratch}//trial-" in done.stdout
        assert 'process.args: ["sh", "-c", "exit 3"]' in lines
        assert "process.cwd: /" in lines
        assert "terminal: no" in lines
        assert f"--- {bundle}/config.json" in lines
        assert '+  "ociVersion": "1.0.0",' in lines
        assert '+        "type": "user"' in lines or site.user.uid
        assert '+      "SLURM_JOB_ID=1",' in lines
        assert len(new) == (not out)
        assert ("slurm_scrun_stage_out: done" in lines) is out
        if not out:
            (left,) = new
            assert (left / "rootfs" / "bin" / "sh").exists()
            assert f"staged bundle: left in {scratch}//{left.name}/" in lines
    finally:
        for directory in new:
            shutil.rmtree(directory)
    assert "scrun: scrun.lua: initialized scrun.lua\n" in done.stderr
    nothing_left(site)


@user
def test_run_a_script_that_changes_nothing(site: Site) -> None:
    bundle = _bundle(site)
    printed = site.run("lua", "run", script(site, FINE), "--bundle", bundle)
    assert printed.stderr == ""
    assert printed.stdout.splitlines() == [
        f"bundle: {bundle}",
        f"root file system: {site.rootfs}",
        'process.args: ["sh", "-c", "exit 3"]',
        "process.cwd: /",
        "terminal: no",
        "slurm.set_bundle_path: the submitted one",
        "slurm.set_root_path: the submitted one",
        "",
        "config.json: not changed",
        "",
        "staged files: none, the submitted bundle is used unchanged",
    ]


@user
@pytest.mark.parametrize("how", ["--debug", "-vv"])
def test_levels_and_stage_out(site: Site, how: str) -> None:
    done = site.run(how, "lua", "run", script(site, FINE), "--stage-out", "-b", _bundle(site))
    assert done.stderr == "scrun: debug: scrun.lua: in\nscrun: scrun.lua: out\n"
    assert done.stdout.endswith("\nslurm_scrun_stage_out: done\n")


@user
def test_a_bundle_in_the_spool_directory(site: Site) -> None:
    body = """
        slurm.allocator_command("cp " .. config_file .. " " .. spool)
        slurm.set_bundle_path(spool)
        local status, output = slurm.remote_command("echo $SLURM_JOB_ID; pwd; exit 3")
        slurm.log_info("%d %s", status, output)
    """
    done = site.run("lua", "run", script(site, IN % body + OUT), "-b", _bundle(site))
    assert done.returncode == 0, done.stderr
    assert done.stderr == f"scrun: scrun.lua: 3 1\nscrun: scrun.lua: {site.base}\n"
    assert "staged bundle: removed with the spool directory\n" in done.stdout
    assert "config.json: not changed\n" in done.stdout
    nothing_left(site)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("slurm.log_verbose('no disk') do return slurm.ERROR end", "stage_in returned -1"),
        ("local x; x.y = 1", "trial.lua:1: attempt to index"),
        ("slurm.allocator_command({})", "trial.lua:1: bad argument #1"),
        (
            "slurm.allocator_command('echo x > ' .. spool .. '/config.json')"
            "slurm.set_bundle_path(spool)",
            "left an invalid config.json",
        ),
    ],
)
@user
def test_run_fails(site: Site, body: str, reason: str) -> None:
    assert reason in site.fails("lua", "run", script(site, IN % body + OUT), "-b", _bundle(site))
    nothing_left(site)


@user
def test_a_stage_out_that_fails(site: Site) -> None:
    text = IN % "" + "function slurm_scrun_stage_out() return slurm.ERROR end"
    done = site.run("lua", "run", script(site, text), "-b", _bundle(site), "--stage-out")
    assert done.returncode == 1
    assert done.stderr.endswith("slurm_scrun_stage_out returned -1, not slurm.SUCCESS\n")
    nothing_left(site)


@user
def test_a_bundle_that_create_would_refuse(site: Site) -> None:
    name = script(site, FINE)
    assert "config.json: No such file" in site.fails("lua", "run", name, "-b", "/tmp")
    bundle = site.bundle_of("no-such-program")
    assert "no-such-program" in site.fails("lua", "run", name, "-b", bundle)


@user
def test_an_interrupt_ends_what_the_script_runs(site: Site) -> None:
    body = "os.execute('echo > b/begun; sleep 1000')"
    name = script(site, IN % body + OUT)
    with site.popen("lua", "run", name, "-b", _bundle(site)) as running:
        wait_until("the command", (site.base / "b" / "begun").exists)
        running.send_signal(signal.SIGINT)
        assert running.wait(5) == 130
    nothing_left(site)
