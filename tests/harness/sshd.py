"""A real sshd on the loopback, and the way there: a laptop's and a login node's."""

import contextlib
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.harness.daemons import program
from tests.harness.networks import free_port
from tests.harness.program import output_of
from tests.harness.users import PATH, User
from tests.harness.wait import wait_until

_SETTINGS = """\
ListenAddress 127.0.0.1
Port {port}
HostKey {base}/host
PidFile none
AuthorizedKeysFile {base}/key.pub
UsePAM no
StrictModes no
PasswordAuthentication no
PermitRootLogin yes
AllowStreamLocalForwarding yes
"""
_SSH = """\
#!/bin/sh
exec /usr/bin/ssh -F {base}/config "$@"
"""
_CONFIG = """\
IdentityFile {base}/key
UserKnownHostsFile {base}/home/.ssh/known_hosts
BatchMode yes
"""


@dataclass(frozen=True)
class Laptop:
    """Where somebody works who reaches the login node by ssh.

    Attributes:
        url: The login node, as `ssh://user@host:port`.
        key: The private key.
        environment: What programs there have: a home directory, and `ssh` that knows the key.
    """

    url: str
    key: Path
    environment: dict[str, str]


@contextlib.contextmanager
def laptop_of(user: User, base: Path, at_login: Mapping[str, str]) -> Iterator[Laptop]:
    """Serve a user's logins, who then has the variables `at_login`; all lies in a new `base`."""
    home = base / "home"
    (home / ".ssh").mkdir(parents=True, mode=0o700)
    (base / "bin").mkdir()
    for name in ("host", "key"):
        words = ("-q", "-t", "ed25519", "-N", "", "-f", str(base / name))
        output_of([program("ssh-keygen"), *words])
    port = free_port()
    settings = _SETTINGS.format(port=port, base=base)
    if at_login:
        settings += f"SetEnv {' '.join(f'{name}={value}' for name, value in at_login.items())}\n"
    (base / "sshd_config").write_text(settings)
    (base / "config").write_text(_CONFIG.format(base=base))
    host, kind = (base / "host.pub").read_text().split()[:2]
    (home / ".ssh" / "known_hosts").write_text(f"[127.0.0.1]:{port} {host} {kind}\n")
    (base / "bin" / "ssh").write_text(_SSH.format(base=base))
    (base / "bin" / "ssh").chmod(0o755)
    user.give(base)
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    if user.uid:  # else the account is locked; this /etc is the tests' own
        output_of(["usermod", "--password", "*", user.name])
    with open(base / "log", "wb") as log:
        sshd = subprocess.Popen(
            [program("sshd"), "-D", "-e", "-f", str(base / "sshd_config")],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True,
        )  # fmt: skip
    try:
        wait_until("sshd", lambda: b"Server listening" in (base / "log").read_bytes())
        environment = {"PATH": f"{base}/bin:{PATH}", "HOME": str(home), "LANG": "C.UTF-8"}
        yield Laptop(f"ssh://{user.name}@127.0.0.1:{port}", base / "key", environment)
    finally:
        sshd.terminate()
        sshd.wait(20)
        print((base / "log").read_text())  # shown if the test fails
        shutil.rmtree(base)
