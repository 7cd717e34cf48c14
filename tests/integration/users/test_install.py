"""scrun install: with the real podman, and as users call it."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from scrun.install import podman as conf
from tests.harness import users
from tests.harness.bundle import snapshot
from tests.harness.installation import Installation
from tests.harness.podman import rootless_podman
from tests.harness.program import output_of, run_program
from tests.harness.site import Site, scrun_binary

pytestmark = pytest.mark.covers("promise doctor and install")

DAEMON = '{\n\t"debug": true,\n\t"log-opts": {"max-size": "1m"}\n}\n'


class Home:
    """A user's directory of settings, and calls that use it."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.path = site.base / "b" / "home"
        self.config = self.path / ".config"
        self.config.mkdir(parents=True)
        site.user.give(self.path)
        self.drop_in = self.config / "containers" / "containers.conf.d" / "scrun.conf"
        self.daemon = self.config / "docker" / "daemon.json"

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        self.site.user.give(self.config)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        # without SLURM_CONF: scrun.toml is in the home that passwd says
        return self.site.run("install", *arguments, environment={"HOME": str(self.path)})

    def must(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        assert done.stdout.count("\n") == 1
        return done.stdout

    def fails(self, *arguments: str) -> str:
        before = snapshot(self.path)
        done = self.run(*arguments)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.count("\n") == 1
        assert snapshot(self.path) == before
        return done.stderr


@pytest.fixture
def home(site: Site) -> Iterator[Home]:
    home = Home(site)
    yield home
    shutil.rmtree(home.path)


user = pytest.mark.parametrize("site", ["local-user"], indirect=True)


@pytest.mark.covers("scrun install")
@user
def test_podman_and_back(home: Home) -> None:
    own = '[containers]\nenv = ["A=b"]\n'
    home.write(home.config / "containers" / "containers.conf", own)
    home.write(home.config / "containers" / "storage.conf", '[storage]\ndriver = "vfs"\n')
    before = snapshot(home.path)
    shown = home.run("podman", "--dry-run").stdout
    assert f"+++ {home.drop_in}" in shown
    assert f'+scrun = ["{scrun_binary()}"]' in shown
    assert snapshot(home.path) == before
    said = home.must("podman")
    assert "podman --runtime scrun run" in said
    assert str(home.drop_in) in said
    assert home.drop_in.read_text() == conf.text(scrun_binary())
    assert "already" in home.must("podman")
    assert home.must("podman", "--default").endswith("try: podman run --network host IMAGE\n")
    assert 'runtime = "scrun"' in home.drop_in.read_text()
    assert str(home.drop_in) in home.must("podman", "--undo")
    assert [*snapshot(home.path)] == [*before]
    assert (home.config / "containers" / "containers.conf").read_text() == own
    assert "nothing to undo" in home.must("podman", "--undo")


@user
def test_storage_that_is_copied(home: Home) -> None:
    assert len(home.run("podman").stdout.splitlines()) == 1
    home.write(home.config / "containers" / "storage.conf", '[storage]\ndriver = "btrfs"\n')
    said = home.run("podman").stdout.splitlines()
    assert said[1:] == [f"note: podman's storage driver is btrfs: {conf.STORAGE}"]


@pytest.mark.covers("scrun install")
@user
def test_the_unit_of_rootless_docker(home: Home) -> None:
    """It starts docker by `scrun outside`, until that is undone."""
    unit = home.config / "systemd" / "user" / "docker.service"
    home.write(unit, "[Service]\nExecStart=/usr/bin/dockerd-rootless.sh\n")
    before = snapshot(home.path)
    assert "systemctl --user daemon-reload, systemctl --user restart" in home.must("docker")
    [drop_in] = unit.with_name("docker.service.d").iterdir()
    assert f'ExecStart="{scrun_binary()}" outside /usr/bin/' in drop_in.read_text()
    assert "already" in home.must("docker")
    assert "systemctl --user daemon-reload" in home.must("docker", "--undo")
    assert [*snapshot(home.path)] == [*before]
    own = "[Service]\nExecStart=\nExecStart=/opt/docker --data-root /x\n"
    home.write(drop_in.with_name("override.conf"), own)  # of `systemctl edit`
    home.must("docker")
    assert 'scrun" outside /opt/docker --data-root /x\n' in drop_in.read_text()
    home.write(drop_in, "[Service]\n")
    assert "was not written by scrun" in home.fails("docker")


@pytest.mark.covers("scrun install")
@user
def test_docker_and_back(home: Home) -> None:
    home.write(home.daemon, DAEMON)
    home.daemon.chmod(0o600)
    elsewhere = home.path / "dotfiles"
    home.daemon.rename(elsewhere)
    home.daemon.symlink_to(elsewhere)
    assert "next: scrun outside dockerd-rootless.sh, then:" in home.must("docker")
    written = elsewhere.read_text()
    assert [*json.loads(written)] == [*json.loads(DAEMON), "runtimes"]
    assert '\n\t"debug": true,\n' in written
    backup = home.daemon.with_name("daemon.json.bak")
    assert backup.read_text() == DAEMON
    assert backup.stat().st_mode & 0o777 == 0o600
    assert json.loads(written)["runtimes"] == {"scrun": {"path": scrun_binary()}}
    assert elsewhere.stat().st_mode & 0o777 == 0o600
    assert elsewhere.stat().st_uid == home.site.user.uid
    assert "already" in home.must("docker")
    assert elsewhere.read_text() == written
    assert backup.read_text() == DAEMON
    assert "systemctl --user restart docker" in home.must("docker", "--undo")
    assert home.daemon.is_symlink()
    assert elsewhere.read_text() == DAEMON
    assert not backup.exists()
    assert "nothing to undo" in home.must("docker", "--undo")


@pytest.mark.covers("scrun install")
@user
def test_what_is_not_touched(home: Home) -> None:
    home.write(home.daemon, '{"runtimes": {"scrun": {"path": "/usr/bin/true"}}}')
    assert "'/usr/bin/true', not this scrun" in home.fails("docker")
    assert "nothing to undo" in home.must("docker", "--undo")
    home.write(home.daemon, '{"debug": true,}')
    assert "not JSON" in home.fails("docker")
    assert "not JSON" in home.fails("docker", "--undo")
    home.daemon.unlink()
    theirs = home.path / "theirs"
    theirs.write_text("{}")  # by root
    home.daemon.symlink_to(theirs)
    assert f"leads to {theirs}, which belongs to uid 0" in home.fails("docker")
    home.write(home.drop_in, "# mine\n")
    assert "was not written by scrun" in home.fails("podman")
    home.drop_in.unlink()
    home.daemon.unlink()
    other = home.config / "containers" / "containers.conf"
    home.write(other, '[engine.runtimes]\nscrun = ["/usr/bin/true"]\n')
    assert f"{other}: names another program scrun, /usr/bin/true" in home.fails("podman")
    home.write(other, "[engine")
    assert "not TOML" in home.fails("podman")
    assert "use podman, docker or docker-api" in home.fails("runc")
    assert "only root may" in home.fails("podman", "--system")


@pytest.mark.covers("scrun install")
@user
def test_a_slurm_conf_that_only_the_environment_names(home: Home, site: Site) -> None:
    """It goes to the real home: scrun looks nowhere else, because engines pass on no HOME."""
    settings = Path(site.user.home) / ".config" / "scrun" / "scrun.toml"
    assert not settings.exists(), f"{settings} is in use, perhaps by another run of the tests"
    done = home.site.run(
        "-f", "l/slurm.conf", "install", "podman", "--dry-run",
        environment={"HOME": str(home.path), "SLURM_CONF": "/other/slurm.conf"},
    )  # fmt: skip
    assert f"+++ {settings}\n" in done.stdout
    assert f'+conf = "{site.base}/l/slurm.conf"\n' in done.stdout
    assert not settings.exists()


@pytest.mark.covers("scrun install")
@pytest.mark.parametrize("site", ["local-root"], indirect=True)
def test_for_all_users(site: Site, tmp_path: Path) -> None:
    drop_in = Path(conf.drop_in("/etc/containers"))
    daemon = Path("/etc/docker/daemon.json")
    assert not drop_in.exists()
    before = daemon.read_bytes() if daemon.exists() else None
    had_directory = drop_in.parent.exists()
    try:
        site.must("install", "podman", "--system")
        assert drop_in.stat().st_mode & 0o777 == 0o644
        assert conf.is_ours(drop_in.read_text())
        assert "next: systemctl reload docker, then: docker run" in site.must("install", "docker")
        assert json.loads(daemon.read_text())["runtimes"]["scrun"] == {"path": scrun_binary()}
    finally:
        site.must("install", "podman", "--undo")
        site.must("install", "docker", "--undo")
    assert not drop_in.exists()
    assert drop_in.parent.exists() is had_directory
    assert (daemon.read_bytes() if daemon.exists() else None) == before

    private = Installation()
    private.base.chmod(0o700)
    done = run_program([private.binary, "install", "docker"], env=site.environment)
    private.close()
    assert done.returncode == 1
    assert f"other users cannot reach {private.base}; install scrun for all users" in done.stderr
    assert (daemon.read_bytes() if daemon.exists() else None) == before


@pytest.mark.covers("scrun install")
@pytest.mark.covers("limitation --ulimit, --cgroupns and the like are needed at every call")
def test_podman_run_after_it() -> None:
    """No option is needed but the network, because this machine has no slirp4netns.

    podman passes no SLURM_CONF on, and nobody has written a scrun.toml but `install`.
    """
    with rootless_podman() as podman:
        home, settings = Home(podman.site), podman._settings
        written = settings.read_bytes()
        settings.unlink()
        try:
            environment = {
                "HOME": str(home.path),
                "XDG_RUNTIME_DIR": f"{podman.site.base}/x",
                "TMPDIR": str(podman.site.base),
            }
            done = podman.site.run("install", "podman", environment=environment)
            assert str(settings) in done.stdout, done.stderr
            command = podman.command  # but for its own --runtime
            command = [*command[: command.index("--runtime")], "--runtime", "scrun"]
            command += ["run", "--rm", "--network", "host", "busybox"]
            said = output_of(
                [*podman.site.user.prefix, *command, "sh", "-c", "echo $SLURM_JOB_ID"],
                env={**users.ordinary().environment, **environment},
                cwd=podman.site.base,
            )
            assert said.strip().isdecimal()
            told = podman.site.run("doctor", "--no-job", environment=environment).stdout
            assert f"ok    podman: knows scrun as {scrun_binary()}\n" in told
            podman.site.run("install", "podman", "--undo", environment=environment)
            assert not settings.exists()
            assert not home.drop_in.parent.exists()
        finally:
            settings.parent.mkdir(parents=True, exist_ok=True)
            settings.write_bytes(written)
            podman.site.user.give(settings.parents[1])
            shutil.rmtree(home.path)
