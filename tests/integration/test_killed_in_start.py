"""A signal that comes while the runtime of this machine starts the container."""

import json
import shutil
import signal
import subprocess

import pytest

from tests.conftest import MakeSite
from tests.harness.wait import wait_until

# as runc 1.1.5, when the signal meets it between its create and its start
_FAILS = """#!/bin/sh
if [ -e {base}/l/fail ]; then
    case " $* " in
    *" kill "*) touch {base}/l/killed; sleep {after}; exit 0 ;;
    *" run "*)
        touch {base}/l/begun
        until [ -e {base}/l/killed ]; do sleep 0.05; done
        echo '{{"level": "error", "msg": "cannot start an already running container"}}' \\
            > {base}/r/c1/runtime.log
        exit 1 ;;
    esac
fi
exec {runc} "$@"
"""


@pytest.mark.parametrize("after", [0, 1])
def test_it_is_what_the_container_ended_by(make_site: MakeSite, after: int) -> None:
    """Whether the runtime's kill has ended before its run, or not yet."""
    site = make_site("local-root", settings='idle_timeout = 5\n[local]\nruntime = "@RUNC@"\n')
    runtime = site.base / "runc"
    runtime.write_text(_FAILS.format(base=site.base, after=after, runc=shutil.which("runc")))
    runtime.chmod(0o755)
    settings = site.base / "scrun.toml"
    settings.write_text(settings.read_text().replace("@RUNC@", str(runtime)))
    site.life("true", container="c0").created()  # the runtime has been tried
    (site.base / "l" / "fail").touch()
    words = ("run", "--keep", "--bundle", str(site.bundle(site.config("sleep", "600"))), "c1")
    null = subprocess.DEVNULL
    with subprocess.Popen(
        [*site.command, *words], env=site.environment, stdin=null, stdout=null, stderr=null
    ) as process:
        wait_until("the runtime begins", (site.base / "l" / "begun").exists)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 143
    state = json.loads(site.must("state", "c1"))
    assert state["annotations"]["org.scrun.reason"] == "killed"
    (site.base / "l" / "fail").unlink()
    site.must("delete", "c1")
