"""What README.md says to type, on a Debian that has git and nothing else of what is needed."""

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import CHECKOUT
from tests.harness.program import run_program

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(3600)]

_LONGEST = 3000
_USER, _UID = "newcomer", 1000


class Machine:
    """A bare machine of a release of Debian's, with a repository of scrun's."""

    def __init__(self, release: str, repository: Path) -> None:
        self.release = release
        self.place = Path(tempfile.mkdtemp(prefix="scrun-newcomer-", dir="/run"))
        self._tool("up")
        shutil.copy(repository, self.place / "tmp" / "scrun")

    def _tool(self, *arguments: str) -> str:
        done = run_program(
            [CHECKOUT / "tools" / "release", "--bare", self.release, *arguments],
            env=os.environ | {"SCRUN_RELEASE_PLACE": str(self.place)},
            stderr=subprocess.STDOUT,
            timeout=_LONGEST,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def types(self, command: str, user: str = "root", *, network: bool = True) -> str:
        """Type a line in the directory `scrun`, or at home before there is one."""
        home = "/root" if user == "root" else f"/home/{user}"
        ids = f"setpriv --reuid={user} --regid={user} --init-groups" * (user != "root")
        given = {"HOME": home, "USER": user, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        given |= {name: value for name, value in os.environ.items() if name.endswith("_proxy")}
        variables = [f"{name}={value}" for name, value in given.items()]
        apart = ["unshare", "--net"] * (not network)
        shell = [*apart, *ids.split(), "env", "-i", *variables, "sh", "-c"]
        script = f"umask 077; cd ~; [ ! -d scrun ] || cd scrun; {command}"
        return self._tool("run", *shell, script)

    def close(self) -> None:
        self._tool("down")


@pytest.fixture(scope="module")
def repository() -> Iterator[Path]:
    """All files of the checkout as one commit, in a file to clone from."""
    with tempfile.TemporaryDirectory(prefix="scrun-repository-") as base:
        git = ["git", f"--git-dir={base}/git", f"--work-tree={CHECKOUT}"]
        who = ["-c", "user.name=newcomer", "-c", "user.email=newcomer@localhost"]
        for words in (
            ["init", "-q"],
            ["add", "--all"],
            [*who, "commit", "-q", "-m", "scrun"],
            ["bundle", "create", "-q", f"{base}/scrun", "HEAD"],
        ):
            run_program([*git, *words], check=True)
        Path(base, "scrun").chmod(0o644)
        yield Path(base, "scrun")


@pytest.fixture(params=["bookworm", "trixie"])
def machine(request: pytest.FixtureRequest, repository: Path) -> Iterator[Machine]:
    made = Machine(request.param, repository)
    yield made
    made.close()


def packages() -> str:
    """The packages that an ordinary user has installed, in README.md."""
    found = re.search(
        r"^apt-get install (.+)$", (CHECKOUT / "README.md").read_text(), re.MULTILINE
    )
    assert found is not None
    return found[1]


def try_out(machine: Machine, user: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Clone, and type tools/try: for the first time, again, and without a network."""
    machine.types("git clone -q /tmp/scrun scrun", user)
    taken = []
    for first, network in ((True, True), (False, True), (False, False)):
        begun = time.monotonic()
        said = machine.types("tools/try", user, network=network)
        taken.append(time.monotonic() - begun)
        assert first or "installing" not in said
        assert "$ scrun exec demo ps\n" in said
        assert said.endswith("That was all; nothing is left of it.\n")
    with capsys.disabled():
        times = ", ".join(f"{seconds:.1f} s" for seconds in taken)
        print(f"\ntools/try on a bare {machine.release}, as {user}: {times}")


def test_as_root(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    try_out(machine, "root", capsys)
    installs = machine.types("PATH=$(tools/setup)/bin:$PATH; scrun install podman; scrun doctor")
    assert "\nnote: not installed: podman; apt-get install podman\n" in installs
    assert "\nwarn  packages: not installed: podman; apt-get install podman\n" in installs
    assert "That was all" in machine.types("tools/try --podman")
    assert " passed" in machine.types("tools/test tests/integration/users/test_first_steps.py")
    assert "That was all" in machine.types("tools/try --slurm")
    assert "nothing was left" in machine.types("tools/chaos --containers 2 --faults none")
    caught = machine.types("tools/mutate --only part-of-a-line-counts")
    assert caught.endswith("1 of 1 faults were caught.\n")
    machine.types("tools/docs --site ~/site && test -s ~/site/searchindex.js")


def test_as_a_user(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.types(f"useradd --create-home --uid {_UID} {_USER}")
    machine.types(f"apt-get -qq update && apt-get -qq install -y {packages()}")
    try_out(machine, _USER, capsys)
    said = machine.types("tools/test --unit", _USER)
    assert " passed" in said
    assert "skipped" not in said
    machine.types("tools/docs --site ~/site && test -s ~/site/searchindex.js", _USER)


def test_the_whole_suite(machine: Machine) -> None:
    machine.types("git clone -q /tmp/scrun scrun")
    assert " passed" in machine.types("tools/test")


@pytest.mark.parametrize("compiler", ["gcc libc6-dev", ""], ids=["compiler", "none"])
def test_pip(machine: Machine, compiler: str) -> None:
    """What docs/howto/install.md says; without a compiler `scrun` is the Python program."""
    machine.types(
        "apt-get -qq update && apt-get -qq install -y --no-install-recommends "
        f"python3-venv crun busybox-static {compiler}"
    )
    machine.types("git clone -q /tmp/scrun scrun")
    machine.types(
        "umask 022; python3 -m venv /opt/scrun && /opt/scrun/bin/pip install -q . && "
        "mkdir -p /opt/image/bin && cp /bin/busybox /opt/image/bin/sh"
    )
    kind = machine.types("head -c 4 /opt/scrun/bin/scrun | od -An -c")
    assert ("E   L   F" in kind) is bool(compiler)
    run = "/opt/scrun/bin/scrun run /opt/image sh -c 'echo hello; exit 7' || echo $?"
    assert machine.types(run) == "hello\n7\n"
