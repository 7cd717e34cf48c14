"""scrun doctor, against the real cluster and this machine: what works, and what is broken."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.harness import cluster
from tests.harness.nightly import nightly
from tests.harness.program import run_program
from tests.harness.site import Site
from tests.harness.terminal import open_terminal
from tests.harness.wait import wait_until

pytestmark = pytest.mark.covers("promise doctor and install")

everywhere = pytest.mark.parametrize(
    "site", ["local-root", "local-user", "slurm-root", "slurm-user"], indirect=True
)
on_slurm = pytest.mark.parametrize("site", ["slurm-user"], indirect=True)

ON_NODES = ("job", "step", "runtime on a node", "shared directory", "images on a node")


class Doctor:
    """What one call said."""

    def __init__(self, site: Site, *options: str, status: int = 0, **environment: str) -> None:
        before, after = options[:-1], options[-1:]
        if options and options[-1] != "--no-job":
            before, after = options, ()
        done = site.run(*before, "doctor", "--format", "json", *after, environment=environment)
        assert done.returncode == status, f"{done.returncode}: {done.stdout} {done.stderr}"
        assert done.stderr == ""
        self.findings: dict[str, dict[str, str]] = {
            found["name"]: found for found in json.loads(done.stdout)
        }
        for found in self.findings.values():
            assert list(found) == ["name", "status", "finding", "remedy"]
            assert bool(found["remedy"]) is (found["status"] != "ok"), found

    def status(self, name: str) -> str:
        return self.findings[name]["status"]

    def text(self, name: str) -> str:
        return self.findings[name]["finding"]

    @property
    def failed(self) -> set[str]:
        return {name for name, found in self.findings.items() if found["status"] == "fail"}


def nothing_left(site: Site) -> None:
    """No job, no process, no supervisor and no file that was not there."""
    site.settle()
    assert site.supervisors() == []
    assert not site.root.exists()


@pytest.mark.covers("scrun doctor")
@pytest.mark.covers("guide Required software: an OCI runtime that works without Slurm")
@everywhere
def test_all_is_well(site: Site) -> None:
    # a root directory that nobody has used yet, which is not to stay
    done = site.run("--root", str(site.base / "b" / "new"), "doctor")
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    assert not [line for line in lines if line[:6] not in ("ok    ", "warn  ")]
    assert f"ok    engine: {site.engine}, from the settings or the command line" in lines
    assert f"ok    container: created, run to its end and deleted ({site.engine})" in lines
    assert ("ok    step: `true` ran there" in lines) is (site.engine == "slurm")
    assert "\033" not in done.stdout
    site.settle()
    assert os.listdir(site.base / "b") == []
    assert not [process for process in site.processes() if "b/new" in str(process)]


@pytest.mark.covers("scrun doctor")
@on_slurm
def test_without_a_job(site: Site) -> None:
    doctor = Doctor(site, "--no-job")
    assert not doctor.findings.keys() & {*ON_NODES, "container"}
    assert doctor.status("slurmctld") == "ok"
    assert doctor.status("munge") == "ok"
    assert doctor.text("versions").startswith("scrun 0.")
    assert " Slurm 2" in doctor.text("versions")


def changed(site: Site, old: str, new: str, *, oci_conf: bool = True) -> str:
    """A slurm.conf that differs from the cluster's; return its path."""
    directory = site.base / "l" / f"etc{len(os.listdir(site.base / 'l'))}"
    directory.mkdir()
    original = Path(cluster.slurm_conf())
    text = original.read_text()
    assert old in text
    (directory / "slurm.conf").write_text(text.replace(old, new))
    if oci_conf and cluster.has_oci_conf():
        (directory / "oci.conf").write_text(original.with_name("oci.conf").read_text())
    return str(directory / "slurm.conf")


@pytest.mark.covers("scrun doctor")
@on_slurm
def test_how_many_containers_there_is_room_for(site: Site) -> None:
    conf = changed(site, "SlurmctldPort=", "SrunPortRange=61000-61099\nSlurmctldPort=")
    found = Doctor(site, "-f", conf, "--no-job").findings["capacity"]
    assert found["status"] == "ok"
    assert "room for about 25 more containers" in found["finding"]
    assert "the first limit is ports (SrunPortRange=61000-61099)" in found["finding"]
    with_limit = ["prlimit", "--nofile=200:200", *site.command]
    site.command, command = with_limit, site.command
    try:
        found = Doctor(site, "--no-job").findings["capacity"]
    finally:
        site.command = command
    assert found["status"] == "warn"
    assert "about 4 more containers" in found["finding"]
    assert "open files (200)" in found["finding"]
    assert "nofile" in found["remedy"]


@pytest.mark.covers("scrun doctor")
@on_slurm
def test_a_controller_that_does_not_answer(site: Site) -> None:
    conf = changed(site, "SlurmctldPort=", "SlurmctldPort=1 #")
    doctor = Doctor(site, "-f", conf, status=1)
    assert doctor.failed == {"slurmctld", "job"}
    assert doctor.text("slurmctld").endswith("is DOWN")
    assert doctor.status("nodes") == "warn"
    assert doctor.text("container") == "not tried"


@pytest.mark.covers("scrun doctor")
@pytest.mark.covers("limitation needs an oci.conf on the nodes")
@pytest.mark.covers("guide an oci.conf on the nodes is needed")
@pytest.mark.covers("guide Known limitations: no privileges, the node's network")
@on_slurm
def test_munge_and_oci_conf_that_are_missing(site: Site) -> None:
    conf = changed(site, "AuthInfo=socket=", "AuthInfo=socket=/nowhere", oci_conf=False)
    doctor = Doctor(site, status=1, SLURM_CONF=conf)
    by_slurm = os.environ.get("SCRUN_TEST_LAUNCH") == "container"
    assert doctor.failed == {"munge", "job"} | ({"oci.conf"} if by_slurm else set())
    assert doctor.text("slurmctld") == "not asked: munge does not work"
    assert doctor.text("munge").startswith("/nowhere/")
    none = "none is used: a shim calls the runtime on the nodes"
    assert (doctor.text("oci.conf") == none) is not by_slurm
    for place, text in (("oci.conf", "RunTimeRun=crun\n"), ("slurm.conf", "")):
        Path(conf).with_name(place).write_text(text)
    doctor = Doctor(site, "--no-job", status=1, SLURM_CONF=conf)
    assert "RunTimeKill is missing" in doctor.text("oci.conf")
    doctor = Doctor(site, status=1, SLURM_CONF="/nowhere/slurm.conf")
    assert doctor.failed >= {"slurm.conf", "job"}
    assert doctor.text("job") == "not tried: /nowhere/slurm.conf cannot be read"


@pytest.mark.covers("scrun doctor")
@pytest.mark.oci_conf
@on_slurm
def test_a_runtime_and_a_directory_that_the_nodes_do_not_have(site: Site) -> None:
    conf = changed(site, "ClusterName", "ClusterName")
    oci_conf = Path(conf).with_name("oci.conf")
    oci_conf.write_text(oci_conf.read_text().replace("crun", "no-such-runtime"))
    # what only this mount namespace has is as good as another machine's
    mount = 'mount -t tmpfs none "$0" && chmod 1777 "$0" && exec "$@"'
    hidden = ["unshare", "--mount", "sh", "-c", mount, str(site.base / "b")]
    command = [*site.command, "-f", conf, "--root", str(site.base / "b" / "r")]
    done = run_program(
        [*hidden, *site.user.prefix, *command, "doctor", "-f", "json"],
        env=site.environment,
        cwd=site.base,
    )
    assert done.returncode == 1, done.stderr
    found = {finding["name"]: finding for finding in json.loads(done.stdout)}
    failed = {name for name, finding in found.items() if finding["status"] == "fail"}
    assert failed == {"runtime on a node", "shared directory", "container"}
    assert "no-such-runtime is not installed" in found["runtime on a node"]["finding"]
    assert "scratch" in found["shared directory"]["remedy"]
    assert "no-such-runtime (RunTimeRun) is not on this machine" in found["oci.conf"]["finding"]
    site.settle()


@on_slurm
def test_requests_that_slurm_refuses(site: Site) -> None:
    doctor = Doctor(site, status=1, SCRUN_PARTITION="nowhere")
    assert doctor.failed == {"job"}
    assert "partition" in doctor.text("job").lower()


@pytest.mark.covers("scrun doctor")
@pytest.mark.nightly
@on_slurm
def test_a_job_that_waits_for_a_minute(site: Site) -> None:
    with cluster.full(site.user):
        done = site.run("doctor", timeout=100)
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert any("warn  job: pending after 60 s: Resources; " in line for line in lines), lines
    assert "warn  container: not tried; correct the failures above" in lines
    site.settle()


@pytest.mark.covers("scrun doctor")
@pytest.mark.parametrize("site", ["local-user"], indirect=True)
def test_settings_and_directories_that_are_wrong(site: Site) -> None:
    broken = site.base / "l" / "broken.toml"
    broken.write_text("engin = 'slurm'\n")
    doctor = Doctor(site, "--config-file", "l/broken.toml", "--engine", "local", status=1)
    assert doctor.failed == {"settings", "container"}
    assert doctor.text("settings").endswith("engin: unknown key (is it engine?)")

    own = str(site.base)  # without XDG_RUNTIME_DIR podman, which is asked, makes a directory
    doctor = Doctor(site, status=1, XDG_RUNTIME_DIR="/nonexistent", TMPDIR=own)
    assert doctor.failed == {"XDG_RUNTIME_DIR"}  # --root is given
    unset = {"XDG_RUNTIME_DIR": "", "TMPDIR": own}
    done = site.run("--root", "/proc/scrun", "doctor", environment=unset)
    assert done.returncode == 1
    failed = [line for line in done.stdout.splitlines() if line.startswith("fail")]
    assert [line.split()[1:3] for line in failed] == [
        ["root", "directory:"],
        ["container:", "root"],
    ]
    assert "warn  XDG_RUNTIME_DIR: not set" in done.stdout

    settings = site.base / "l" / "other.toml"
    settings.write_text('[slurm]\nbin = "/nonexistent"')
    options = "--config-file", str(settings), "--engine", "slurm"
    doctor = Doctor(site, *options, status=1)
    assert doctor.failed >= {"engine", "job"}
    assert "not found in /nonexistent" in doctor.text("engine")
    script = site.base / "l" / "scrun.lua"
    script.write_text("no Lua")
    settings.write_text(
        f'engine = "local"\n[lua]\nscript = "{script}"\n[local]\nruntime = "false"'
    )
    doctor = Doctor(site, "--config-file", str(settings), status=1)
    assert doctor.failed == {"scrun.lua", "runtime here", "container"}
    assert "no OCI runtime works" in doctor.text("runtime here")


@pytest.mark.covers("scrun doctor")
@on_slurm
def test_interrupted_in_its_job(site: Site) -> None:
    with site.popen("--root", str(site.base / "b" / "r"), "doctor") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        wait_until("the job", site.jobs)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr.read() == b""
    site.settle()
    assert os.listdir(site.base / "b") == []


@pytest.mark.parametrize("site", ["local-root"], indirect=True)
@pytest.mark.parametrize("plain", [False, nightly(True)])
def test_colour_on_a_terminal_only(site: Site, plain: bool) -> None:
    terminal, slave = open_terminal()
    environment = {**site.environment, "TERM": "xterm", **({"NO_COLOR": "1"} if plain else {})}
    with site.popen("doctor", "--no-job", stdio=slave, env=environment) as process:
        os.close(slave)
        said = terminal.read_all()
        assert process.wait(30) == 0
    terminal.close()
    assert ("\033[32mok" in said) is not plain


@pytest.mark.parametrize("site", ["local-user"], indirect=True)
def test_the_store_of_images(site: Site) -> None:
    store, also = site.base / "b" / "images", site.base / "b" / "also"
    config = site.base / "b" / "images.toml"
    config.write_text(f'[images]\nstore = "{store}"\nsize = 1\n')
    site.user.give(config)
    assert "not used yet" in Doctor(site, "--no-job", SCRUN_CONFIG=str(config)).text("images")
    image = store / "layer-1"
    image.mkdir(parents=True, mode=0o700)
    (image / "scrun-image.json").write_text('{"source": "x", "size": 3221225472}')
    site.user.give(store)
    store.chmod(0o700)
    doctor = Doctor(site, "--no-job", SCRUN_CONFIG=str(config))
    assert doctor.status("images") == "warn"
    assert f"{store}: 1 images and layers, 3.0 of 0.0 GiB" in doctor.text("images")
    config.write_text(f'[images]\nstore = "{store}"\nalso = ["{also}"]\n')
    assert f"{also}: is not there" in Doctor(site, "--no-job", SCRUN_CONFIG=str(config)).text(
        "images"
    )


@pytest.mark.nightly
@pytest.mark.parametrize("site", ["local-user"], indirect=True)
def test_storage_that_keeps_no_owners(site: Site) -> None:
    """As a network file system is: root of a user namespace may not give files away there."""
    storage, below = site.base / "b" / "storage", site.base / "b" / "below"
    for path in (storage, below):
        path.mkdir()
        site.user.give(path)
    config = site.base / "b" / "config" / "containers"
    config.mkdir(parents=True)
    (config / "storage.conf").write_text(
        f'[storage]\ndriver = "vfs"\ngraphroot = "{storage}/new/one"\n'
    )
    home = str(config.parent)
    assert Doctor(site, "--no-job", XDG_CONFIG_HOME=home).status("podman's storage") == "ok"
    options = ("--chown-deny", "--chgrp-deny", "-o", "allow_other")
    subprocess.run(["bindfs", *options, below, storage], check=True, timeout=10)
    try:
        doctor = Doctor(site, "--no-job", XDG_CONFIG_HOME=home)
    finally:
        subprocess.run(["umount", storage], check=True, timeout=10)
    assert doctor.status("podman's storage") == "warn"
    assert f"{storage}/new/one: files there cannot have" in doctor.text("podman's storage")
    assert "Operation not permitted" in doctor.text("podman's storage")
    assert list(below.iterdir()) == []
