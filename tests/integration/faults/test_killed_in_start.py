"""A signal that comes while the runtime of this machine starts the container."""

import json
import shutil
import signal
import subprocess

import pytest

from tests.conftest import MakeSite
from tests.harness.wait import wait_until

_WAITS = """#!/bin/sh
if [ -e {base}/l/wait ]; then
    case " $* " in
    *" start "*)
        touch {base}/l/begun
        until [ -e {base}/l/go ]; do sleep 0.05; done ;;
    esac
fi
exec {runc} "$@"
"""


@pytest.mark.parametrize("again", [False, True])
def test_it_is_what_the_container_ended_by(make_site: MakeSite, again: bool) -> None:
    """It is for the program, which begins in a moment; who asks again does not wait for that."""
    site = make_site("local-root", settings='idle_timeout = 5\n[local]\nruntime = "@RUNC@"\n')
    runtime = site.base / "runc"
    runtime.write_text(_WAITS.format(base=site.base, runc=shutil.which("runc")))
    runtime.chmod(0o755)
    settings = site.base / "scrun.toml"
    settings.write_text(settings.read_text().replace("@RUNC@", str(runtime)))
    site.life("true", container="c0").created()  # the runtime has been tried
    (site.base / "l" / "wait").touch()
    words = ("run", "--keep", "--bundle", site.bundle_of("sleep", "600"), "c1")
    null = subprocess.DEVNULL
    with subprocess.Popen(
        [*site.command, *words], env=site.environment, stdin=null, stdout=null, stderr=null
    ) as process:
        wait_until("the runtime begins", (site.base / "l" / "begun").exists)
        process.send_signal(signal.SIGTERM)
        wait_until(
            "it is known", lambda: "received SIGTERM" in site.must("logs", "--messages", "c1")
        )
        if again:
            process.send_signal(signal.SIGTERM)
        else:
            (site.base / "l" / "go").touch()
        assert process.wait(30) == 143
    state = json.loads(site.must("state", "c1"))
    assert state["annotations"]["org.scrun.reason"] == "killed"
    (site.base / "l" / "wait").unlink()
    site.must("delete", "--force", "c1")
