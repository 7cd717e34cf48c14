"""The users of the tests: root, the ordinary user of the test cluster, and a stranger to both."""

import fcntl
import os
import pwd
import subprocess
from dataclasses import dataclass
from pathlib import Path

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class User:
    """A user, and how to run a program as them."""

    name: str
    uid: int
    gid: int
    home: str

    @classmethod
    def of(cls, name: str) -> "User":
        entry = pwd.getpwnam(name)
        return cls(name, entry.pw_uid, entry.pw_gid, entry.pw_dir)

    @property
    def prefix(self) -> list[str]:
        """What comes before a command line to run it as this user."""
        if self.uid == os.geteuid():
            return []
        ids = [f"--reuid={self.uid}", f"--regid={self.gid}"]
        return ["setpriv", *ids, "--init-groups", "--"]

    @property
    def environment(self) -> dict[str, str]:
        """What a login would give them, and nothing of the caller's."""
        found = {"PATH": PATH, "HOME": self.home, "USER": self.name, "LANG": "C.UTF-8"}
        if self.uid:
            found["XDG_RUNTIME_DIR"] = f"/run/user/{self.uid}"
        return found

    def give(self, path: Path) -> None:
        """Make a file or a whole directory theirs."""
        if self.uid == os.geteuid():
            return
        os.lchown(path, self.uid, self.gid)
        if path.is_dir() and not path.is_symlink():
            for directory, directories, files in os.walk(path):
                for name in (*directories, *files):
                    os.lchown(os.path.join(directory, name), self.uid, self.gid)


def claim(user: User) -> None:
    """Keep other runs from using a test user until this process ends.

    Two runs break each other: what an engine's runtime reads is in the user's home, and each
    counts the other one's processes as its own leaks. `tools/test` has claimed its user already.

    Raises:
        BlockingIOError: Another run has it.
    """
    if os.environ.get("SCRUN_TEST_USER") == user.name:
        return
    os.makedirs("/run/lock", exist_ok=True)  # a machine that never booted has none
    lock = os.open(f"/run/lock/{user.name}.test", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held by the descriptor, until the end


def root() -> User:
    return User.of("root")


def ordinary() -> User:
    """Return the test user that `tools/slurm-cluster` made; without root, who runs the tests."""
    if uid := os.geteuid():
        return User.of(pwd.getpwuid(uid).pw_name)
    return User.of(os.environ.get("SLURM_CLUSTER_USER", "scrun-test"))


def other() -> User:
    """Return another ordinary user, who has nothing to do with the first; made if missing."""
    name = "scrun-other"
    try:
        return User.of(name)
    except KeyError:
        command = ["useradd", "--system", "--no-create-home", "--user-group", name]
        subprocess.run(command, check=False, stdin=subprocess.DEVNULL, timeout=30)
        return User.of(name)  # somebody else may have made it at the same moment
