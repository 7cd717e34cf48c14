"""The programs of `scrun shims pyxis`: pyxis' options, and everything else unchanged."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.harness import cluster
from tests.harness.nightly import nightly
from tests.harness.program import run_program
from tests.harness.registry import SAYS, Registry
from tests.harness.wait import wait_while

pytestmark = [
    pytest.mark.covers("scrun shims"),
    pytest.mark.parametrize("registry", ["slurm-user"], indirect=True),
]


def call(
    registry: Registry, tool: str, *words: str, behind: str = "", **variables: str
) -> "subprocess.CompletedProcess[str]":
    """Call a program of the shims, as somebody does who has them in PATH."""
    site = registry.site
    shims = site.must("shims", "pyxis").strip()
    path = ":".join(filter(None, (shims, behind, site.environment["PATH"])))
    environment = {**site.environment, **variables, "PATH": path}
    argv = [*site.user.prefix, "/usr/bin/env", f"PATH={path}", tool, *words]
    return run_program(argv, env=environment, cwd=site.base / "b", timeout=90)


def srun(registry: Registry, *words: str, image: str = "box:1", **variables: str) -> str:
    """Run something in a container; return what it prints."""
    named = f"--container-image={registry.name}#{image}"
    done = call(registry, "srun", named, *words, **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def fake(registry: Registry) -> str:
    """A directory with a srun and an sbatch that print their arguments."""
    folder = registry.site.base / "b" / "fake"
    folder.mkdir()
    for tool in ("srun", "sbatch"):
        (folder / tool).write_text('#!/bin/sh\nprintf "<%s>" "$0" "$@"\nexit 5\n')
        (folder / tool).chmod(0o755)
    return str(folder)


@pytest.mark.parametrize("tool", ["srun", "sbatch"])
def test_other_calls_are_unchanged(registry: Registry, fake: str, tool: str) -> None:
    for words in (
        ("hostname",),
        ("-N", "2", "a b", "*", "", "--", "x"),
        ("--container", "/bundle", "--container-id=x", "true"),
        ("tool", "--container-image=x"),
        ("-n2", "--", "tool", "--container-image", "x"),
    ):
        done = call(registry, tool, *words, behind=fake)
        assert done.stderr == ""
        assert done.stdout == "".join(f"<{word}>" for word in (f"{fake}/{tool}", *words))
        assert done.returncode == 5


def test_help_has_the_lines_that_launchers_look_for(registry: Registry) -> None:
    for tool in ("srun", "sbatch"):
        text = call(registry, tool, "--help").stdout
        assert "--ntasks" in text
        assert text.count("[pyxis]") == 16


def test_the_image_and_its_defaults(registry: Registry) -> None:
    """The caller is the user, who has the own variables below the image's; no entrypoint runs."""
    registry.push("entry:1", Entrypoint=["false"], Env=["A=image"], **SAYS)
    script = "id -u; echo $A,$B; touch /bin/x"
    uid = registry.site.user.uid
    said = srun(registry, "sh", "-c", script, image="entry:1", A="mine", B="mine")
    assert said == f"{uid}\nimage,mine\n"


def test_mounts_and_workdir(registry: Registry) -> None:
    (place := registry.site.base / "b" / "data").mkdir()
    registry.site.user.give(place)
    mounts = f"--container-mounts={place}:/rw,{place}:/ro:ro+rprivate"
    script = "touch /rw/made; touch /ro/no 2>/dev/null || echo refused; pwd"
    words = (mounts, "--container-workdir", "/rw")
    assert srun(registry, *words, "sh", "-c", script) == "refused\n/rw\n"
    assert (place / "made").stat().st_uid == registry.site.user.uid


def test_home_and_root(registry: Registry) -> None:
    home = registry.site.environment["HOME"]
    Path(home, "mine").write_text("")
    words = ("--container-mount-home", "--container-remap-root")
    with cluster.showing_home():
        said = srun(registry, *words, "sh", "-c", "ls ~/mine; id -u")
        assert said == "/root/mine\n0\n", "as with enroot"
        said = srun(registry, words[0], "sh", "-c", "ls ~/mine; id -u")
        assert said == f"{home}/mine\n{registry.site.user.uid}\n"
    words = ("--no-container-mount-home", "--no-container-remap-root")
    said = srun(registry, *words, "sh", "-c", f"ls -d {home} 2>&1; id -u")
    assert "No such file" in said
    assert said.endswith(f"\n{registry.site.user.uid}\n")


def test_entrypoint_and_env(registry: Registry) -> None:
    registry.push("echo:1", Entrypoint=["echo"], Env=["A=image"], **SAYS)
    words = ("--container-entrypoint", "--container-entrypoint-log")
    assert srun(registry, *words, "a", image="echo:1") == "a\n"
    assert srun(registry, "--no-container-entrypoint", "pwd", image="echo:1") == "/\n"
    said = srun(registry, "--container-env=A,NONE", "sh", "-c", "echo $A", image="echo:1", A="me")
    assert said == "me\n"


def test_writable_and_readonly(registry: Registry) -> None:
    script = "touch /bin/x 2>&1 && echo written; :"
    assert srun(registry, "--container-writable", "sh", "-c", script) == "written\n"
    assert "Read-only" in srun(registry, "--container-readonly", "sh", "-c", script)


def test_names_and_saving(registry: Registry) -> None:
    srun(registry, "--container-name=work", "sh", "-c", "echo kept >/tmp/a")
    done = call(registry, "srun", "--container-name=work", "cat", "/tmp/a")
    assert done.stdout == "kept\n", done.stderr
    saved = registry.site.base / "b" / "saved.sqsh"
    done = call(registry, "srun", "--container-name=work", f"--container-save={saved}", "true")
    assert done.returncode == 0, done.stderr
    done = call(registry, "srun", "--container-image=saved.sqsh", "cat", "/tmp/a")
    assert done.stdout == "kept\n", done.stderr
    image = f"--container-image={registry.name}#box:1"
    done = call(registry, "srun", image, "--container-name=work:create", "true")
    assert done.returncode == 1
    assert "--container-name=work:create: it exists already" in done.stderr
    said = srun(registry, "--container-name=new:create", "sh", "-c", "cat /tmp/a 2>&1; :")
    assert "No such file" in said
    done = call(registry, "srun", image, "--container-name=new:exec", "true")
    assert done.returncode == 1
    assert "new" in done.stderr


def test_a_running_one_is_joined(registry: Registry) -> None:
    done = registry.site.run("image", "import", f"docker://{registry.name}/box:1", "work")
    assert done.returncode == 0, done.stderr
    words = ("name:work", "sh", "-c", "echo up >/tmp/a; sleep 60")
    registry.site.must("run", "--detach", "--name", "work", *words)
    script = "until [ -s /tmp/a ]; do sleep 0.1; done; cat /tmp/a; ps | grep -c 'sleep 60'"
    done = call(registry, "srun", "--container-name=work", "sh", "-c", script)
    registry.site.must("delete", "--force", "work")
    assert done.stdout.startswith("up\n"), done.stderr
    assert int(done.stdout.split()[1]) >= 1


@pytest.mark.parametrize(
    "image", [(), nightly(("--container-image=@box:1",))], ids=["", "with an image"]
)
def test_another_one_beside_it(registry: Registry, image: tuple[str, ...]) -> None:
    """`no_exec` is another container, with the same files."""
    done = registry.site.run("image", "import", f"docker://{registry.name}/box:1", "work")
    assert done.returncode == 0, done.stderr
    words = ("name:work", "sh", "-c", "echo up >/tmp/a; sleep 60")
    registry.site.must("run", "--detach", "--writable", "--name", "work", *words)
    script = "until [ -s /tmp/a ]; do sleep 0.1; done; cat /tmp/a; echo too >>/tmp/a; echo $$"
    named = [word.replace("@", f"{registry.name}#") for word in image]
    done = call(registry, "srun", *named, "--container-name=work:no_exec", "sh", "-c", script)
    assert done.stdout == "up\n1\n", done.stderr
    assert registry.site.must("exec", "work", "cat", "/tmp/a") == "up\ntoo\n"
    done = call(registry, "srun", *named, "--container-name=work:create", "true")
    assert "it exists already" in done.stderr
    registry.site.must("delete", "--force", "work")


@pytest.mark.parametrize("words", [("--version",), nightly(("--help",))])
def test_another_home_does_not_make_it_call_itself(
    registry: Registry, words: tuple[str, ...]
) -> None:
    """It took its own program for Slurm's, which called it, and so on, until no pid was left."""
    home, other = registry.site.base / "b" / "home", registry.site.base / "b" / "other"
    for directory in (home, other):
        directory.mkdir()
        registry.site.user.give(directory)
    behind = registry.site.run("shims", "pyxis", environment={"HOME": str(other)}).stdout.strip()
    done = call(registry, "srun", *words, behind=behind, HOME=str(home))
    assert (done.returncode, done.stderr) == (0, "")


def test_options_of_srun(registry: Registry) -> None:
    site = registry.site
    out, err = site.base / "b" / "out", site.base / "b" / "err"
    files = ("-o", str(out), "-e", str(err))
    words = ("-N2", "-n2", "-t", "3", "-l", *files, "--export", "ALL,C=d")
    named = f"--container-image={registry.name}#box:1"
    done = call(registry, "srun", named, *words, "sh", "-c", "echo $C; echo no >&2")
    assert done.returncode == 0, err.read_text()
    assert sorted(out.read_text().splitlines()) == ["0: d", "1: d"]
    assert "no" in err.read_text()
    assert srun(registry, "--export=NONE", "sh", "-c", "echo ,$B", B="mine") == ",\n"


def test_within_a_job_all_its_tasks_run(registry: Registry) -> None:
    named = f"--container-image={registry.name}#box:1"
    site = registry.site
    salloc = (f"--job-name={site.base.name}", "-N2", "-n2", "srun", named, "echo", "in it")
    done = call(registry, "salloc", *salloc)
    assert done.stdout == "in it\n" * 2, done.stderr


@pytest.mark.parametrize("how", ["script", nightly("option"), "wrap", nightly("variable")])
def test_sbatch(registry: Registry, how: str) -> None:
    site = registry.site
    image = f"{registry.name}#box:1"
    in_script = f"#SBATCH --container-image={image} -t 3\n" if how == "script" else ""
    script = site.base / "b" / "job.sh"
    script.write_text(
        f"#!/bin/sh\n{in_script}#SBATCH -o batch.out\n\necho $1 'in it'\n"
        "test -e /usr/bin/srun && echo outside; echo end\n"
    )
    words = [f"--job-name={site.base.name}"]
    variables = {"PYXIS_CONTAINER_IMAGE": image} if how == "variable" else {}
    if how in ("option", "wrap"):
        words.append(f"--container-image={image}")
    if how == "wrap":
        words += ["-o", "batch.out", "--wrap", "echo one in it; echo end"]
    else:
        words += [str(script), "one"]
    done = call(registry, "sbatch", *words, **variables)
    assert done.returncode == 0, done.stderr
    # sbatch --wait looks every ten seconds
    wait_while("the job", lambda: cluster.jobs(site.user, site.base.name), 60)
    said = (site.base / "b" / "batch.out").read_text().splitlines()
    assert [line for line in said if not line.startswith("scrun: ")] == ["one in it", "end"]


@pytest.mark.parametrize("how", ["", nightly(":exec"), ":no_exec", nightly(":create")])
def test_sbatch_beside_one_that_runs(registry: Registry, how: str) -> None:
    """What has the name counts when the job begins."""
    site = registry.site
    done = site.run("image", "import", f"docker://{registry.name}/box:1", "work")
    assert done.returncode == 0, done.stderr
    words = ("name:work", "sh", "-c", "echo up >/tmp/a; sleep 60")
    site.must("run", "--detach", "--writable", "--name", "work", *words)
    script = "until [ -s /tmp/a ]; do sleep 0.1; done; cat /tmp/a; ps | grep -c '[s]leep 60'"
    job = (f"--job-name={site.base.name}.b", "-o", "batch.out", "--wrap", script)
    done = call(registry, "sbatch", f"--container-name=work{how}", *job)
    assert done.returncode == 0, done.stderr
    wait_while("the job", lambda: cluster.jobs(site.user, f"{site.base.name}.b"), 60)
    said = (site.base / "b" / "batch.out").read_text()
    site.must("delete", "--force", "work")
    if how == ":create":
        assert "--container-name=work:create: it exists already" in said
    else:
        assert said.split()[-2:] == ["up", "0" if how == ":no_exec" else "1"]


def test_what_cannot_be_meant(registry: Registry) -> None:
    for line, told in (
        ("--container-mounts=/a:/b true", "--container-image is missing: name an image"),
        ("--container-image=a --container-writable --container-readonly true",
         "--container-writable does not go with --container-readonly"),
        ("--container-image=a --container-image=b", "--container-image is given twice"),
        ("--container-image=dockerd://a true", "dockerd:// is not known: use docker://"),
        ("--container-image=a --multi-prog x", "srun --multi-prog: does not go with"),
        ("--container-image=a -i x.%j", "x.%j: %j is unknown before the cont"),
        ("--container-name=a:b true", "'b' is unknown; use auto, create, exec, no_exec"),
    ):  # fmt: skip
        done = call(registry, "srun", *line.split())
        assert done.returncode == 1
        assert told in done.stderr
        assert done.stderr.count("\n") == 1


@pytest.mark.covers("scrun shims: every option of srun and sbatch")
def test_options_that_only_a_job_can_have(registry: Registry) -> None:
    """pyxis' own tests give -s to every srun."""
    words = ("-s", "--comment", "said so", "--nice=5", "-N1", "--immediate=60", "--bcast=/x")
    said = srun(
        registry, *words, "sh", "-c", "echo $SLURM_JOB_ID; exec 2>&1; echo $SLURM_JOB_NAME"
    )
    assert said.split()[0].isdecimal()
    assert said.split()[1] == "sh"
    done = call(
        registry, "srun", f"--container-image={registry.name}#box:1", "--comment=x", "sh", "-c",
        "exit 7",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (7, "")


@pytest.mark.covers("scrun shims: scripts on standard input")
def test_sbatch_reads_a_script_from_standard_input(registry: Registry) -> None:
    folder = registry.site.base / "b"
    script = f"""#!/bin/sh
#SBATCH --container-image={registry.name}#box:1
#SBATCH --output={folder}/typed.out
#SBATCH --container-unshare=uts
readlink /proc/self/ns/uts
"""
    site = registry.site
    path = f"{site.must('shims', 'pyxis').strip()}:{site.environment['PATH']}"
    argv = [*site.user.prefix, "/usr/bin/env", f"PATH={path}", "sbatch", "--wait"]
    done = run_program(argv, env=site.environment, cwd=folder, timeout=90, input=script)
    assert done.returncode == 0, done.stderr
    *_, namespace = (folder / "typed.out").read_text().splitlines()
    assert namespace.startswith("uts:")
    assert namespace != os.readlink("/proc/self/ns/uts")


def test_files_whose_names_depend_on_the_job(registry: Registry) -> None:
    """The line that people copy: --output=%x_%j.log."""
    folder = registry.site.base / "b"
    (folder / "in").write_text("words\n")
    files = ("--job-name=nm", "--output=%x_%j.log", "--error=%t.err", "--input=in")
    assert srun(registry, *files, "sh", "-c", "cat; echo $SLURM_JOB_ID; echo err >&2") == ""
    [log] = folder.glob("nm_*.log")
    job = log.stem.removeprefix("nm_")
    assert log.read_text() == f"words\n{job}\n"
    assert (folder / "0.err").read_text().endswith("err\n")
    assert not list(folder.glob(".*"))


def test_the_programs_are_the_users_own(registry: Registry) -> None:
    shims = registry.site.must("shims", "pyxis").strip()
    assert sorted(os.listdir(shims)) == ["sbatch", "srun"]
    status = os.stat(shims)
    assert (status.st_uid, status.st_mode & 0o777) == (registry.site.user.uid, 0o700)
    before = os.stat(f"{shims}/srun").st_ino
    registry.site.must("shims", "pyxis")
    assert os.stat(f"{shims}/srun").st_ino == before
