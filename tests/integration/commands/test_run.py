"""scrun run, logs and attach: containers without an engine above them."""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scrun.core.ready import ready
from tests.conftest import MakeSite
from tests.harness.beside import Beside
from tests.harness.nightly import nightly
from tests.harness.processes import descendants
from tests.harness.program import run_program
from tests.harness.site import CGROUP2, Site
from tests.harness.terminal import ConsoleSocket, open_terminal
from tests.harness.wait import wait_until

pytestmark = pytest.mark.covers("promise commands of crun and runc")

TWO = pytest.mark.parametrize("site", ["local-user", "slurm-user"], indirect=True)


def ids(site: Site) -> list[str]:
    return site.must("list", "--quiet").split()


def reaper(site: Site) -> int:
    """Return the process that is the parent of the only container's first one."""
    program = "/reapers/runtime.py"
    [found] = [p.pid for p in site.processes() if any(w.endswith(program) for w in p.argv)]
    return found


class At:
    """A terminal at which commands are typed."""

    def __init__(self, site: Site) -> None:
        self.screen, self._slave = open_terminal()
        self.site = site

    def type(self, *words: str) -> "subprocess.Popen[bytes]":
        return self.site.popen(*words, stdio=self._slave)

    @property
    def slave(self) -> int:
        """The end of the programs."""
        return self._slave

    def hang_up(self) -> None:
        """Nobody will type anything more."""
        os.close(self._slave)
        self._slave = -1

    def close(self) -> None:
        if self._slave >= 0:
            self.hang_up()
        self.screen.close()


@pytest.fixture
def at(site: Site) -> Iterator[At]:
    found = At(site)
    yield found
    found.close()


@pytest.mark.both_engines
@pytest.mark.covers("scrun run: in the foreground")
def test_in_the_foreground(site: Site) -> None:
    script = "echo out; echo err >&2; cat; exit 7"
    words = ("run", "--bundle", site.bundle_of("sh", "-c", script), "one")
    with site.popen(*words) as process:
        out, err = process.communicate(b"from stdin\n", timeout=30)
    assert (process.returncode, out, err) == (7, b"out\nfrom stdin\n", b"err\n")
    assert ids(site) == []


@pytest.mark.covers("scrun run: in the foreground")
@TWO
def test_keep(site: Site) -> None:
    words = ("run", "--keep", "--bundle", site.bundle_of("sh", "-c", "exit 3"), "one")
    assert site.run(*words).returncode == 3
    assert ids(site) == ["one"]
    assert '"org.scrun.exit_status": "3"' in site.must("state", "one")
    site.must("delete", "--force", "one")


@pytest.mark.both_engines
@pytest.mark.covers("scrun run: in the foreground")
@TWO
def test_signals_are_passed_on(site: Site) -> None:
    script = "trap 'echo got; exit 9' INT; echo up; while :; do sleep 0.05; done"
    with site.popen("run", "--bundle", site.bundle_of("sh", "-c", script), "one") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 9
        assert process.stdout.read() == b"got\n"
    assert ids(site) == []


@pytest.mark.both_engines
@pytest.mark.covers("scrun run: in the foreground")
@TWO
def test_one_that_is_killed_leaves_no_container(site: Site) -> None:
    words = ("run", "--bundle", site.bundle_of("sh", "-c", "echo up; sleep 600"), "one")
    with site.popen(*words) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.kill()
    wait_until("its end", lambda: '"stopped"' in site.run("state", "one").stdout)
    site.must("delete", "--force", "one")


@pytest.mark.covers("scrun run: in the foreground")
def test_what_cannot_be_run(site: Site) -> None:
    words = ("run", "--bundle", site.bundle_of("no-such-program"), "one")
    assert "not found in $PATH" in site.fails(*words)
    assert ids(site) == []


@pytest.mark.both_engines
@pytest.mark.covers("scrun run: at a terminal, and its live line")
def test_at_a_terminal(at: At) -> None:
    script = 'stty size; read line; echo "got $line"; exit 5'
    bundle = at.site.bundle_of("sh", "-c", script, terminal=True)
    process = at.type("run", "--bundle", bundle, "one")
    at.screen.read_until("43 143")
    at.screen.says_got()
    assert process.wait(30) == 5
    assert ids(at.site) == []


# crun now and then takes a short program's last output for its log: 1.8 on a node, 1.21 here too
ENDS = "test -t 0 && test -t 1 && echo terminal; read x; echo got $x; sleep 0.5; exit 5"


@pytest.mark.covers("scrun run: at a terminal, and its live line")
@TWO
@pytest.mark.parametrize("command", ["run", nightly("exec"), nightly("shell")])
@pytest.mark.parametrize(
    "ends", ["pipes", "nothing to read", "terminal and pipe", nightly("pipe and terminal")]
)
def test_a_terminal_that_the_caller_has_not_at_both_ends(at: At, command: str, ends: str) -> None:
    """`scrun run … | tee log`, `scrun exec -t … </dev/null`: as crun and runc do."""
    site = at.site
    script = ENDS
    words: tuple[str, ...] = (
        "run",
        "--bundle",
        site.bundle_of("sh", "-c", script, terminal=True),
        "one",
    )
    if command != "run":
        life = site.shell("sleep 600").created().start()
        wait_until("it runs", lambda: site.run("exec", life.id, "true").returncode == 0)
        words = ("exec", "--tty", life.id, "sh", "-c", script)
        words = words if command == "exec" else ("shell", life.id, "sh", "-c", script)
    assert carried(at, words, ends) == 5


@TWO
@pytest.mark.parametrize("command", ["run", nightly("exec"), "shell"])
@pytest.mark.parametrize(
    ("typed", "status"),
    [("", 0), nightly("(exit 3)\n", 3), ("exit 4", 4), nightly("sh\nsh -c cat\n", 0)],
)
def test_who_has_no_terminal_ends(site: Site, command: str, typed: str, status: int) -> None:
    """Below cron, or `ssh HOST scrun …`: a shell would wait for ever for somebody to type."""
    words: tuple[str, ...] = ("run", "--bundle", site.bundle_of("sh", terminal=True), "one")
    if command != "run":
        life = site.shell("sleep 600").created().start()
        wait_until("it runs", lambda: site.run("exec", life.id, "true").returncode == 0)
        words = ("exec", "--tty", life.id, "sh") if command == "exec" else ("shell", life.id)
    began = time.monotonic()
    done = site.run(*words, input=typed, start_new_session=True)
    assert (done.returncode, done.stderr) == (status, "")
    assert time.monotonic() - began < 30


@contextlib.contextmanager
def ended_by_a_failure(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Who waits for it afterwards does not wait for what a failure has not written."""
    try:
        yield
    except BaseException:
        process.kill()
        raise


def carried(at: At, words: tuple[str, ...], ends: str) -> int:
    """Type a line, see the program's own, and return its status."""
    pipe = subprocess.PIPE
    if ends == "nothing to read":
        words = tuple(word.replace("read x", "x=line") for word in words)
        if words[0] == "run":
            config = Path(words[2]) / "config.json"
            config.write_text(config.read_text().replace("read x", "x=line"))
        done = at.site.run(*words)
        assert (done.stdout, done.stderr) == ("terminal\ngot line\n", "")  # newlines of any kind
        return done.returncode
    stdin = at.slave if ends == "terminal and pipe" else pipe
    stdout = at.slave if ends == "pipe and terminal" else pipe
    process = at.site.popen(*words, stdin=stdin, stdout=stdout)
    with process, ended_by_a_failure(process):
        if process.stdout:
            line = process.stdout.readline()
            # runc may show a line before it has told its terminal to end none itself
            early = at.site.engine == "local" and line == b"terminal\r\r\n"
            assert early or line == b"terminal\r\n"
        else:
            at.screen.read_until("terminal")
        if process.stdin:
            process.stdin.write(b"line\n")
            process.stdin.flush()
        else:
            at.screen.write("line\n")
        if process.stdout:
            assert b"got line\r\n" in process.stdout.read()
        else:
            at.screen.read_until("got line")
        return process.wait(30)


@pytest.mark.parametrize("runtime", ["crun", nightly("runc")])
def test_the_last_words_at_a_terminal(make_site: MakeSite, runtime: str) -> None:
    """A reaper that comes to read them only when the container has ended still shows them."""
    site = make_site("local-root", settings=f'[local]\nruntime = "{runtime}"\n')
    if runtime == "crun":
        site.command = [*CGROUP2, *site.command]
    os.mkfifo(site.rootfs / "go")
    script = "echo up; read x < /go; seq 3; echo end; exit 3"
    at = At(site)
    bundle = site.bundle_of("sh", "-c", script, terminal=True)
    process = at.type("run", "--bundle", bundle, "one")
    at.screen.read_until("up")
    pid = reaper(site)
    [child] = descendants(pid)
    os.kill(pid, signal.SIGSTOP)
    (site.rootfs / "go").write_text("\n")
    ended = Path(f"/proc/{child}/stat")
    wait_until("the container's end", lambda: ended.read_text().rpartition(")")[2][1] == "Z")
    os.kill(pid, signal.SIGCONT)
    said = at.screen.read_until("end")
    assert said.split() == ["1", "2", "3", "end"]
    assert process.wait(30) == 3
    at.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, nightly(signal.SIGINT)])
@pytest.mark.parametrize("site", ["local-root", "local-user"], indirect=True)
def test_the_reaper_is_ended(at: At, number: int) -> None:
    """What is the parent of a container's first process here."""
    site = at.site
    bundle = site.bundle_of("sh", "-c", "echo up; read line; exit 7", terminal=True)
    process = at.type("run", "--keep", "--bundle", bundle, "one")
    at.screen.read_until("up")
    os.kill(reaper(site), number)
    assert process.wait(30) == 125
    assert '"org.scrun.exit_status": "125"' in site.must("state", "one")
    site.must("delete", "--force", "one")
    site.settle()


@pytest.mark.parametrize(
    ("runtime", "terminal"),
    [("crun", False), ("runc", True), nightly("crun", True), nightly("runc", False)],
)
def test_a_failure_of_the_runtime_is_told_once(
    make_site: MakeSite, runtime: str, terminal: bool
) -> None:
    site = make_site("local-root", settings=f'[local]\nruntime = "{runtime}"\n')
    if runtime == "crun":
        site.command = [*CGROUP2, *site.command]
    config = site.config("true", terminal=terminal)
    config["linux"]["sysctl"] = {"net.never_heard_of": "1"}
    at = At(site)
    process = at.type("run", "--bundle", str(site.bundle(config)), "one")
    said = at.screen.read_until("never_heard_of")
    assert process.wait(30) == 1
    at.hang_up()
    said += at.screen.read_all()
    assert said.count("o such file") == 1, said  # runc 1.4 says the name twice itself
    assert ids(site) == []


@pytest.mark.parametrize(
    ("runtime", "detach", "terminal"),
    [
        ("crun", False, False),
        ("runc", True, True),
        nightly("crun", True, True),
        nightly("runc", False, False),
    ],
)
def test_one_that_cannot_be_made(
    make_site: MakeSite, runtime: str, detach: bool, terminal: bool
) -> None:
    """`run` and `run --detach` fail as the runtime does, in its words, and nothing is left."""
    site = make_site("local-root", settings=f'[local]\nruntime = "{runtime}"\n')
    if runtime == "crun":
        site.command = [*CGROUP2, *site.command]
    config = site.config("true", terminal=terminal)
    config["mounts"] = [mount for mount in config["mounts"] if mount["type"] != "cgroup"]
    config["linux"]["sysctl"] = {"net.never_heard_of": "1"}
    words = ("run", *(["--detach"] if detach else []), "--bundle", str(site.bundle(config)), "one")
    ours = site.run(*words)
    config["process"]["terminal"] = False  # which they would want of their caller
    bundle = str(site.bundle(config))
    theirs = Beside(runtime, site.base / "beside").run("run", "--bundle", bundle, "one")
    assert (ours.returncode, theirs.returncode) == (1, 1)
    *_, reason = theirs.stderr.strip().splitlines()
    assert "never_heard_of" in reason
    assert "never_heard_of" in ours.stderr
    assert ours.stderr.count("o such file") == 1, ours.stderr
    assert ids(site) == []


@pytest.mark.covers("scrun(1) --preserve-fds")
@pytest.mark.parametrize("runtime", ["crun", nightly("runc")])
def test_more_descriptors(make_site: MakeSite, runtime: str) -> None:
    """A container that is created here gets them, as with crun and runc."""
    site = make_site("local-root", settings=f'[local]\nruntime = "{runtime}"\n')
    before = CGROUP2 if runtime == "crun" else ()
    script = 'read a <&3; read b <&4; echo "$a $b"; (true <&5) 2>/dev/null || echo no more'
    config = site.config("sh", "-c", script)
    config["mounts"] = [mount for mount in config["mounts"] if mount["type"] != "cgroup"]
    bundle = site.bundle(config)
    said = []
    for command in (site.command, Beside(runtime, site.base / "beside").command):
        called = shlex.join([*(before if command is site.command else ()), *command])
        create = f"{called} create --preserve-fds 2 --bundle {bundle} one"
        text = (
            f"exec 3< <(echo first) 4< <(echo second) 5</dev/null; {create} && exec 3<&- 4<&- 5<&-"
        )
        done = run_program(
            ["bash", "-c", f"{{ {text}; }} >{site.base}/out 2>&1; {called} start one"],
            env=site.environment,
            cwd=site.base,
        )
        assert done.returncode == 0, (done, (site.base / "out").read_text())
        wait_until("its words", lambda: "no more" in (site.base / "out").read_text())
        said.append((site.base / "out").read_text())
        run_program(["bash", "-c", f"{called} delete --force one"], env=site.environment)
    assert said[0] == said[1]
    assert said[0] == "first second\nno more\n"


_TELLS = 'read a <&3; read b <&4; echo "$a $b"; (true <&5) 2>/dev/null || echo no more'
_WITH_THEM = "exec 3< <(echo first) 4< <(echo second) 5</dev/null"


def _in_shell(site: Site, text: str) -> subprocess.CompletedProcess[str]:
    """Run a script of bash as the site's user."""
    return run_program(
        [*site.user.prefix, "bash", "-c", text], env=site.environment, cwd=site.base
    )


@pytest.mark.covers("scrun(1) --preserve-fds")
@pytest.mark.parametrize(
    ("user", "runtime"),
    [("local-root", "crun"), nightly("local-root", "runc"), nightly("local-user", "")],
)
def test_more_descriptors_of_run_and_exec(make_site: MakeSite, user: str, runtime: str) -> None:
    """What runs here gets them, as with crun and runc, though the supervisor starts it."""
    site = make_site(user, settings=f'[local]\nruntime = "{runtime}"\n' if runtime else "")
    scrun = shlex.join([*(CGROUP2 if runtime == "crun" else ()), *site.command])
    config = site.config("sh", "-c", _TELLS)
    config["mounts"] = [mount for mount in config["mounts"] if mount["type"] != "cgroup"]
    bundle = site.bundle(config)
    closes = site.base / "b" / "closes"
    config["process"]["args"] = ["sh", "-c", "echo hello >&3; exec 3>&-; sleep 600"]
    long = site.bundle(config)
    text = f"exec 3> >(cat >{closes}; echo end >>{closes})"
    done = _in_shell(site, f"{text}; {scrun} run --detach --preserve-fds 1 --bundle {long} two")
    assert (done.returncode, done.stderr) == (0, "")
    wait_until("the end of the pipe", lambda: closes.read_text() == "hello\nend\n")
    called = {
        "run": f"run --preserve-fds 2 --bundle {bundle} one",
        "exec": f"exec --preserve-fds=2 two sh -c {shlex.quote(_TELLS)}",
    }
    for words in called.values():
        done = _in_shell(site, f"{_WITH_THEM}; {scrun} {words}")
        assert (done.returncode, done.stderr) == (0, ""), words
        assert done.stdout == "first second\nno more\n", words
    text = "exec 3</dev/null 4<&3 5<&3 6<&3 7<&3 8<&3 9<&3 10<&3 11<&3 12< <(echo twelfth)"
    done = _in_shell(site, f"{text}; {scrun} exec --preserve-fds=10 two sh -c 'cat <&12'")
    assert (done.returncode, done.stdout) == (0, "twelfth\n"), done.stderr
    done = _in_shell(site, f"{_WITH_THEM}; {scrun} exec --preserve-fds=2 two never-heard-of")
    assert done.returncode == 127, done.stderr
    assert _in_shell(site, f"{scrun} delete --force two").returncode == 0


@pytest.mark.both_engines
@pytest.mark.covers("scrun(1) --preserve-fds")
@pytest.mark.parametrize("site", ["local-root", "slurm-user"], indirect=True)
def test_descriptors_that_it_does_not_get(site: Site) -> None:
    life = site.life("sleep", "600").created().start()
    life.wait_for("running")
    if site.engine == "slurm":
        scrun, bundle = shlex.join(site.command), site.bundle_of("true")
        for words in (
            f"run --preserve-fds 1 --bundle {bundle} one",
            f"exec --preserve-fds=1 {life.id} true",
        ):
            done = _in_shell(site, f"{scrun} {words} 3</dev/null")
            line = "scrun: no effect in a job: --preserve-fds\n"
            assert (done.returncode, done.stderr) == (0, line)
    assert "descriptor 3 is not open" in site.fails("exec", "--preserve-fds=2", life.id, "true")
    assert "no more than" in site.fails("exec", "--preserve-fds=999", life.id, "true")
    assert "a number" in site.fails("exec", "--preserve-fds=x", life.id, "true")
    assert "a number" in site.fails("create", "--preserve-fds=-1", "--bundle", "b", "two")
    life.kill("KILL")
    assert life.wait() == 137


@pytest.mark.parametrize("command", [nightly("run --detach"), "create"])
@pytest.mark.parametrize("site", ["local-root", "local-user"], indirect=True)
def test_one_with_a_console_socket_that_cannot_be_made(site: Site, command: str) -> None:
    """The terminal in which the runtime says why never gets to its reader."""
    console = ConsoleSocket(site.base / "console")
    config = site.config("true", terminal=True)
    config["linux"]["sysctl"] = {"net.never_heard_of": "1"}
    bundle = str(site.bundle(config))
    words = (*command.split(), "--console-socket", str(console.path), "--bundle", bundle, "one")
    said = site.fails(*words)
    console.close()
    assert "never_heard_of" in said
    assert said.count("\n") == 1
    assert ids(site) == []


@pytest.mark.parametrize("site", ["local-root", "local-user"], indirect=True)
def test_a_detached_one_runs_when_run_returns(site: Site) -> None:
    """So whatever needs a running container can be done at once."""
    bundle = site.bundle_of("sleep", "600")
    limits = [] if site.user.uid else ["update --pids-limit 100"]  # a user has no cgroup here
    for command in ("events --stats", "pause", "ps", "exec", *limits):
        site.must("run", "--detach", "--bundle", bundle, "one")
        words = [*command.split(), "one", *(["true"] if command == "exec" else [])]
        done = site.run(*words)
        if "controller `pids` is not available" not in done.stderr:  # crun, where cgroups lack it
            assert (done.returncode, done.stderr) == (0, "")
        site.must("delete", "--force", "one")


@pytest.mark.covers("scrun run: at a terminal, and its live line")
@pytest.mark.parametrize("site", ["slurm-user"], indirect=True)
def test_the_live_line(at: At) -> None:
    """While it waits there is one line on the terminal, which is gone when it runs."""
    process = at.type("run", "--bundle", at.site.bundle_of("echo", "now"), "one")
    said = at.screen.read_until("now")
    assert "staging the bundle" in said
    assert said.rpartition("staging the bundle")[2].startswith("\r\x1b[K")
    assert process.wait(30) == 0


# detached


@pytest.mark.both_engines
def test_detached_from_a_command_substitution(site: Site) -> None:
    """Who reads to the end of file has that when `run` returns; the output is kept."""
    bundle = site.bundle_of("sh", "-c", "echo out; echo err >&2; sleep 600")
    shell = f'id=$(scrun run --detach --bundle {bundle} one 2>&1 | cat); echo "it is $id"'
    words = [
        *site.user.prefix,
        "sh",
        "-c",
        f'scrun() {{ {shlex.join(site.command)} "$@"; }}; {shell}',
    ]
    done = run_program(words, env=site.environment, cwd=site.base)
    assert (done.returncode, done.stdout, done.stderr) == (0, "it is \n", "")
    # by two pipes: nobody knows which was first
    wait_until("its output", lambda: sorted(site.must("logs", "one").split()) == ["err", "out"])
    site.must("delete", "--force", "one")


@pytest.mark.covers("scrun run --detach", "scrun logs, attach")
def test_detached_from_a_terminal(at: At) -> None:
    """Its output stays in the record, and the container outlives the terminal."""
    site = at.site
    script = "for n in 1 2 3; do echo line $n; sleep 0.2; done; echo err >&2; exit 4"
    process = at.type("run", "--detach", "--bundle", site.bundle_of("sh", "-c", script), "one")
    assert process.wait(30) == 0
    at.screen.close()
    everything = "line 1\nline 2\nline 3\nerr\n"
    assert site.must("logs", "--follow", "one") == everything
    assert site.must("logs", "one") == everything
    assert site.must("logs", "--follow", "one") == everything  # it has ended by now
    assert site.must("logs", "--follow", "--tail", "2", "one") == "line 3\nerr\n"
    assert site.must("logs", "--tail", "1", "on") == "err\n"  # the beginning of an id
    for words in ((), ("--follow",), ("--follow", "--tail", "9")):
        assert site.must("logs", *words, "--since", "1h", "one") == everything
        assert site.must("logs", *words, "--since", "2990-01-01", "one") == ""
    assert site.must("logs", "--until", "1h", "one") == ""
    assert "leave --follow out" in site.fails("logs", "--follow", "--until", "1h", "one")
    lines = site.must("logs", "--timestamps", "one").splitlines()
    assert "".join(f"{line.partition('Z ')[2]}\n" for line in lines) == everything
    assert all(re.match("20[0-9-]{8}T[0-9:]{8}Z ", line) for line in lines)
    assert '"org.scrun.exit_status": "4"' in site.must("state", "one")
    site.must("delete", "--force", "one")


@pytest.mark.covers("scrun run --detach")
@TWO
def test_detached_elsewhere(site: Site) -> None:
    """Output that is no terminal's goes where it went; the pid file names the anchor."""
    pid_file, output = site.base / "b" / "pid", site.base / "b" / "output"
    bundle = site.bundle_of("sh", "-c", "echo out; exec sleep 600")
    words = ("run", "--detach", "--pid-file", str(pid_file), "--bundle", bundle, "one")
    with output.open("wb") as file:
        done = site.run(*words, stdout=file, stderr=file)
    assert done.returncode == 0, output.read_text()
    wait_until("its output", lambda: output.read_text() == "out\n")
    assert "is not kept here" in site.fails("logs", "one")
    assert "is not kept here" in site.fails("attach", "one")
    assert "it runs" not in site.must("logs", "--messages", "one")
    os.kill(int(pid_file.read_text()), signal.SIGKILL)
    wait_until("its end", lambda: '"stopped"' in site.must("state", "one"))
    site.must("delete", "--force", "one")


@pytest.mark.covers("scrun logs, attach")
@TWO
def test_attach(at: At) -> None:
    site = at.site
    script = 'while read line; do echo "got $line"; [ "$line" != end ] || exit 6; done'
    bundle = site.bundle_of("sh", "-c", script, terminal=True)
    assert at.type("run", "--detach", "--bundle", bundle, "one").wait(30) == 0
    process = at.type("attach", "one")
    at.screen.write("first\n")
    at.screen.read_until("got first")
    at.screen.write("\x10\x11")
    assert process.wait(30) == 0
    process = at.type("attach", "one")
    at.screen.write("end\n")
    at.screen.read_until("got end")
    assert process.wait(30) == 6
    assert "got first" in site.must("logs", "one")
    site.must("delete", "--force", "one")


@pytest.mark.covers("scrun logs, attach")
@TWO
def test_attach_without_a_terminal(at: At) -> None:
    site = at.site
    script = "trap 'echo bye; exit 8' INT; while :; do echo tick; sleep 0.05; done"
    bundle = site.bundle_of("sh", "-c", script)
    assert at.type("run", "--detach", "--bundle", bundle, "one").wait(30) == 0
    process = at.type("attach", "one")
    at.screen.read_until("tick\r\n")
    process.send_signal(signal.SIGINT)  # as ^C does, for the terminal is as it was
    at.screen.read_until("bye")
    assert process.wait(30) == 8
    site.must("delete", "--force", "one")


@pytest.mark.covers("scrun logs, attach")
def test_of_none(make_site: Any) -> None:
    site = make_site("local-user")
    for command in ("logs", "attach", "ps", "pause", "events"):
        assert "does not exist" in site.fails(command, "none")


@pytest.mark.covers("scrun run: in the foreground")
def test_a_supervisor_that_dies(make_site: MakeSite) -> None:
    """The container goes on, all that it says is kept, and who watches it sees that."""
    site = make_site("local-user")
    at = At(site)
    bundle = site.bundle_of(
        "sh", "-c", "trap 'echo seen' USR1; echo out; sleep 600 & while :; do wait; done"
    )
    assert at.type("run", "--detach", "--bundle", bundle, "one").wait(30) == 0
    wait_until("its output", lambda: site.must("logs", "one") == "out\n")
    follower = site.popen("logs", "--follow", "one")
    viewer = site.popen("attach", "--no-stdin", "one")
    assert follower.stdout is not None
    shown = viewer.stdout
    assert shown is not None
    assert follower.stdout.readline() == b"out\n"

    def attached() -> bool:
        site.must("kill", "one", "USR1")
        return bool(ready([shown.fileno()], seconds=0.5)[0])

    wait_until("the viewer", attached)
    [supervisor] = site.supervisors()
    os.kill(supervisor, signal.SIGKILL)
    before = site.must("logs", "one").count("seen")

    def goes_on() -> bool:
        site.must("kill", "one", "USR1")
        return site.must("logs", "one").count("seen") > before

    wait_until("more", goes_on)
    site.must("kill", "one", "KILL")
    followed, _ = follower.communicate(timeout=30)
    assert b"out\n" + followed == site.must("logs", "one").encode()
    viewer.communicate(timeout=30)
    assert (follower.returncode, viewer.returncode) == (0, 137)
    site.must("delete", "--force", "one")
    at.close()


@pytest.mark.both_engines
@pytest.mark.covers("scrun run: in the foreground")
def test_files(site: Site, tmp_path: Path) -> None:
    """A pid file that cannot be written is known before there is a container."""
    words = ("run", "--pid-file", "/nowhere/pid", "--bundle", site.bundle_of("true"), "one")
    assert "/nowhere/pid" in site.fails(*words)
    assert ids(site) == []


@pytest.mark.covers("scrun requests: variables of the caller")
@pytest.mark.parametrize("site", ["local-user", "slurm-user"], indirect=True)
def test_a_variable_that_is_misspelled(site: Site) -> None:
    """It is said, and no more: one that looks like nothing of ours is somebody else's."""
    names = {"SCRUN_PARTITON": "x", "SCRUN_OF_THE_SITE": "y"}
    done = site.run("run", "--bundle", site.bundle_of("true"), "one", environment=names)
    line = "scrun: SCRUN_PARTITON has no effect: is it SCRUN_PARTITION?\n"
    assert (done.returncode, done.stderr) == (0, line)
    assert (
        "SCRUN_DEBUG: loud: is not one of quiet, fatal, error, info, verbose, debug, debug2"
        in (
            site.run(
                "run",
                "--bundle",
                site.bundle_of("true"),
                "one",
                environment={"SCRUN_DEBUG": "loud"},
            ).stderr
        )
    )


@pytest.mark.parametrize("runtime", ["crun", nightly("runc")])
def test_a_group_that_the_user_has_anyway(make_site: MakeSite, runtime: str) -> None:
    """Images' users are in their own group. An ordinary user's runc adds no group, not even it."""
    site = make_site("local-user", settings=f'[local]\nruntime = "{runtime}"\n')
    before = CGROUP2 if runtime == "crun" else ()
    config = site.config("sh", "-c", "id -G; sleep 600")
    config["mounts"] = [mount for mount in config["mounts"] if mount["type"] != "cgroup"]
    config["process"]["user"]["additionalGids"] = [config["process"]["user"].get("gid", 0)]
    scrun = [*before, *site.user.prefix, *site.command]
    how: dict[str, Any] = {"env": site.environment, "cwd": site.base}
    words = ("run", "--detach", "--bundle", str(site.bundle(config)), "one")
    done = run_program([*scrun, *words], **how)
    assert (done.returncode, done.stderr) == (0, "")
    done = run_program([*scrun, "exec", "one", "id", "-G"], **how)
    assert (done.returncode, done.stdout.split()[0]) == (0, "0"), done.stderr
    assert run_program([*scrun, "delete", "--force", "one"], **how).returncode == 0
