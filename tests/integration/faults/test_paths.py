"""Paths that lead astray: each is refused in one line that names it, and nothing stays."""

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import MakeSite
from tests.harness.places import KINDS, each
from tests.harness.program import run_program
from tests.harness.site import Site
from tests.harness.wait import wait_until, wait_while

USER = pytest.mark.parametrize("site", ["local-user"], indirect=True)
REASON = re.compile(
    r"is not a regular file|is not a directory|Not a directory|does not exist|No such file"
    r"|Permission denied|Too many levels of symbolic links|Is a directory|is not JSON"
    r"|File name too long|[Cc]onnection refused|belongs to|and is not a file"
    r"|is not a socket"
)
FILES = ("a file", "an unreadable file", "another's file")
DIRECTORIES = ("a directory", "an unreadable directory", "another's directory")


class Faults:
    """What was answered otherwise than it should be."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.found: list[str] = []

    def refused(self, what: str, names: Path, *arguments: str) -> None:
        """Hold that a call is refused in one line that has a path and a reason."""
        done = self.site.run(*arguments, timeout=10)
        said = done.stderr
        if (
            done.returncode != 1
            or done.stdout
            or said.count("\n") != 1
            or str(names) not in said
            or not REASON.search(said)
            or "internal error" in said
        ):
            self.found.append(f"{what}: {done.returncode} {done.stdout}{said}")


def quietly(site: Site, *arguments: str) -> int:
    """Call scrun with nothing that a container could hold open; return its status."""
    null = subprocess.DEVNULL
    return site.run(*arguments, stdout=null, stderr=null).returncode


@pytest.fixture
def faults(site: Site) -> Iterator[Faults]:
    found = Faults(site)
    yield found
    assert found.found == []
    site.settle()
    assert site.must("list", "--quiet") == ""


@pytest.fixture
def place(site: Site) -> Path:
    path = site.base / "b" / "place"
    path.mkdir()
    site.user.give(path)
    return path / "here"


@pytest.mark.covers("security --root, --bundle, --pid-file, --console-socket, --log, --config")
@USER
def test_bundle(site: Site, faults: Faults, place: Path) -> None:
    for kind in each(place, site.user):
        faults.refused(kind, place, "create", "--bundle", str(place), "c1")


@pytest.mark.covers("security --root, --bundle, --pid-file, --console-socket, --log, --config")
@USER
@pytest.mark.parametrize("option", ["", "--config"])
def test_config_json(site: Site, faults: Faults, option: str) -> None:
    bundle = site.bundle(site.config("true"))
    path = bundle / "config.json"
    path.unlink()
    words = ["--config", str(path)] if option else []
    for kind in each(path, site.user):
        faults.refused(kind, path, "create", "--bundle", str(bundle), *words, "c1")


@USER
def test_root_file_system(site: Site, faults: Faults, place: Path) -> None:
    bundle = site.bundle({**site.config("true"), "root": {"path": str(place)}})
    for kind in each(place, site.user, "a directory"):
        if "directory" not in kind:
            faults.refused(kind, place, "create", "--bundle", str(bundle), "c1")


@pytest.mark.covers("security --root, --bundle, --pid-file, --console-socket, --log, --config")
@USER
def test_pid_file(site: Site, faults: Faults, place: Path) -> None:
    words = ["create", "--bundle", site.bundle_of("true"), "--pid-file"]
    for kind in each(place, site.user, *FILES, "a link to itself", "a link to nothing"):
        faults.refused(kind, place, *words, str(place), "c1")
        assert os.listdir(place.parent) == [place.name]
    for kind in each(place, site.user, "a directory"):
        faults.refused(f"below {kind}", place, *words, f"{place}/pid", "c1")


@USER
def test_pid_file_takes_the_place_of_a_file_or_link(site: Site, place: Path) -> None:
    """And what that leads to stays as it is."""
    outside = site.base / "b" / "outside"
    outside.write_text("kept")
    site.user.give(outside)
    place.symlink_to(outside)
    bundle = site.bundle(site.config("true"))
    assert quietly(site, "create", "--bundle", str(bundle), "--pid-file", str(place), "c1") == 0
    assert place.read_text().isdecimal()
    assert not place.is_symlink()
    assert outside.read_text() == "kept"
    assert os.listdir(place.parent) == [place.name]
    site.must("delete", "--force", "c1")


@pytest.mark.covers("security --root, --bundle, --pid-file, --console-socket, --log, --config")
@USER
def test_console_socket(site: Site, faults: Faults, place: Path) -> None:
    bundle = site.bundle(site.config("true", terminal=True))
    for kind in each(place, site.user):
        words = ("--console-socket", str(place))
        faults.refused(kind, place, "create", "--bundle", str(bundle), *words, "c1")


@pytest.mark.covers("security --root, --bundle, --pid-file, --console-socket, --log, --config")
@USER
def test_log(site: Site, place: Path) -> None:
    """Where it cannot be written is no reason to fail, nor to wait."""
    bundle = site.bundle(site.config("true"))
    for kind in each(place, site.user):
        words = ("--log", str(place), "--log-format", "json", "create", "--bundle")
        said = site.fails(*words, f"{bundle}/missing", "c1", timeout=10)
        assert f"{bundle}/missing" in said, kind


@pytest.mark.covers("security --root, --bundle, --pid-file, --console-socket, --log, --config")
@USER
def test_process_file(site: Site, faults: Faults, place: Path) -> None:
    life = site.life("sleep", "60").created().start()
    for kind in each(place, site.user):
        faults.refused(kind, place, "exec", "--process", str(place), life.id)
    life.end()


ROOTS = [kind for kind in KINDS if kind != "a directory"]


@USER
def test_root_directory(site: Site, faults: Faults, place: Path) -> None:
    bundle = site.bundle(site.config("true"))
    for kind in each(place, site.user, "a directory"):
        words = ("--root", str(place), "create", "--bundle", str(bundle), "c1")
        faults.refused(kind, place, *words)
        if kind != "an unreadable directory":
            faults.refused(f"below {kind}", place, "--root", f"{place}/r", *words[2:])


@pytest.mark.covers("security scrun with the other one's --root")
@USER
def test_who_may_not_look_knows_nothing(site: Site, faults: Faults, place: Path) -> None:
    """Least of all that there is no container."""
    for kind in each(
        place, site.user, *(k for k in KINDS if "'s dir" not in k and "able d" not in k)
    ):
        for command in ("state", "start", "kill", "pause", "ps", "events", "logs", "attach"):
            faults.refused(f"{kind}: {command}", place, "--root", str(place), command, "c1")
        for words in (["delete"], ["delete", "--force"], ["exec"]):
            more = ["true"] if words == ["exec"] else []
            faults.refused(f"{kind}: {words}", place, "--root", str(place), *words, "c1", *more)


@USER
def test_what_is_in_the_place_of_a_record(site: Site, faults: Faults) -> None:
    bundle = site.bundle(site.config("true"))
    site.must("list")
    site.life("true").created().delete()  # there is a root directory
    path = site.root / "c1"
    for kind in each(path, site.user, *DIRECTORIES):
        faults.refused(kind, path, "create", "--bundle", str(bundle), "c1")


@USER
def test_damaged_records(site: Site) -> None:
    """Nothing waits for them, and `delete` removes those that say nothing."""
    site.life("true").created().delete()
    for kind in KINDS:
        record = site.root / "damaged"
        record.mkdir(mode=0o700)
        (record / "supervisor").symlink_to("../@gone")
        KINDS[kind](record / "state.json", site.user)
        site.user.give(record)
        said = site.fails("state", "damaged", timeout=10)
        missing = kind == "a link to nothing"
        assert ("record is incomplete" if missing else f"{record}/state.json") in said, kind
        [row] = json.loads(site.must("list", "--format", "json", timeout=10))
        assert row["status"] == "unknown", kind
        if kind == "an unreadable file":  # it may say which job there is still
            assert "Permission denied" in site.fails("delete", "--force", "damaged")
            (record / "state.json").chmod(0o700)
        site.must("delete", "--force", "damaged", timeout=10)
        assert not record.exists(), kind


@pytest.mark.parametrize("place", ["local-user", "slurm-user"])
def test_root_directory_is_removed(make_site: MakeSite, place: str) -> None:
    """Nobody can be asked about the container then; it ends with its anchor, and all goes."""
    site = make_site(place, settings="idle_timeout = 0\n")
    life = site.shell("echo ready; exec sleep 600").created().start().says("ready")
    supervisor = site.stopped_supervisor()  # or on a busy machine it has been restored before that
    shutil.rmtree(site.root)
    assert "does not exist" in site.fails("state", life.id)
    os.kill(supervisor, signal.SIGCONT)
    os.kill(life.anchor, signal.SIGKILL)
    wait_while("supervisor", site.supervisors, 20)
    if (site.root / life.id).exists():  # on a busy machine it has been restored meanwhile
        site.must("delete", life.id)
    site.settle()


@pytest.mark.covers("security what is in a root directory")
@USER
def test_only_records_are_removed(site: Site, place: Path) -> None:
    """The root directory may be somebody's home."""
    site.life("true").created().delete()
    for root in (site.root, place):
        root.mkdir(exist_ok=True, mode=0o700)
        (root / "Documents").mkdir()
        (root / "Documents" / "state.json").write_text('{"id": "Documents"}')
        site.user.give(root)
        for force in ([], ["--force"]):
            said = site.fails("--root", str(root), "delete", *force, "Documents")
            assert (
                f"{root}/Documents is not a container's record: it has no link `supervisor`"
                in said
            )
        assert (root / "Documents" / "state.json").exists()
        for path in ((root / "Documents" / "state.json").unlink, (root / "Documents").rmdir):
            path()


@USER
def test_settings_file(site: Site, faults: Faults, place: Path) -> None:
    bundle = site.bundle_of("true")
    for kind in each(place, site.user, "a file"):
        words = ("--config-file", str(place), "create", "--bundle", bundle, "c1")
        faults.refused(kind, place, *words)
    for kind in each(place, site.user):
        if kind in ("a file", "a directory"):
            continue
        environment = {"XDG_RUNTIME_DIR": str(place), "SCRUN_CONFIG": "", "SCRUN_ENGINE": "local"}
        command = [*site.user.prefix, site.command[0], "create", "--bundle", bundle, "c1"]
        done = run_program(
            command, env={**site.environment, **environment}, cwd=site.base, timeout=10
        )
        if "able dir" in kind or "'s dir" in kind or "directory" not in kind:
            assert done.returncode == 1, kind
            assert done.stderr.startswith(f"scrun: root directory {place}/scrun: "), kind
            assert done.stderr.count("\n") == 1, kind


def test_a_script_that_is_none(make_site: MakeSite) -> None:
    """Nothing waits for one that is a FIFO, and no job is asked for."""
    site = make_site("slurm-user")
    place = site.base / "b" / "scrun.lua"
    settings = (site.base / "scrun.toml").read_text()
    (site.base / "scrun.toml").write_text(f'{settings}[lua]\nscript = "{place}"\n')
    bundle = site.bundle_of("true")
    for kind in each(place, site.user, "a file"):
        said = site.fails("create", "--bundle", bundle, "c1", timeout=10)
        assert str(place) in said, kind
        assert "internal error" not in said, kind
    assert site.jobs() == []


BAD_IDS = (
    *("", ".", "..", "/", "a/b", "../x", "a\nb", "a\tb", "a b", "a\x1b[2J", "@user", "@tmp", "ä"),
    *("☃", "a\u202eb", "a:b", "a*", "a\\b", "%s", "x" * 256, "x" * 5000),
)
FINE_IDS = ("--force", "-x", "-", "x", "X_1.2+3-4", "...", "_", ".x", "x" * 255)


def holds(site: Site, container: str, text: str) -> bool:
    """Whether a text is in the state of a container."""
    return text in site.must("state", "--", container)


@USER
def test_ids(site: Site) -> None:
    bundle = site.bundle_of("true")
    for bad in BAD_IDS:
        words = ["create", "--bundle", bundle] if bad != "../x" else ["delete", "--force"]
        said = site.fails(*words, "--", bad, timeout=10)
        assert "invalid container id" in said, bad
        assert said.rstrip("\n").isprintable(), bad
    for number, good in enumerate(FINE_IDS):
        assert quietly(site, "create", "--bundle", bundle, "--", good) == 0, good
        assert json.loads(site.must("state", "--", good))["id"] == good
        if number < 4:  # what the runtime, too, has to take for an id
            site.must("start", "--", good)
            status = '"org.scrun.exit_status": "0"'
            wait_until("its end", partial(holds, site, good, status))
        site.must("delete", "--", good)
        assert site.must("list", "--quiet") == ""
