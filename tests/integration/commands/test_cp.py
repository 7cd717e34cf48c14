"""scrun cp: files of a running container, out of it and into it."""

import io
import os
import signal
import tarfile
from pathlib import Path

import pytest

from tests.conftest import MakeSite
from tests.harness.adoption import kill_supervisor
from tests.harness.life import Life
from tests.harness.nightly import nightly, often
from tests.harness.site import Site
from tests.harness.wait import wait_until

pytestmark = pytest.mark.shares_sites

PLACES = pytest.mark.parametrize("place", ["local-root", "local-user", "slurm-root", "slurm-user"])
TWO = pytest.mark.parametrize("place", ["local-user", "slurm-user"])
SHIM = '[slurm]\nlaunch = "shim"\n'

_TREE = """
mkdir -p /d/e
echo one >/d/e/f
ln /d/e/f /d/g
ln -s e/f /d/s
mkfifo /d/p
chmod 4711 /d/e/f
chmod 700 /d/e
"""
_LARGE = often(100, 300) << 20


def running(site: Site, script: str = "") -> Life:
    config = site.config("sh", "-c", f"{script}\necho up; sleep 1000")
    config["root"]["readonly"] = False
    return site.life(config=config).created(60).start(60).says("up", 60)


def over(life: Life) -> None:
    life.kill("KILL")
    life.wait(30)
    life.delete()


def here(site: Site) -> Path:
    """A directory of the user's."""
    found = site.base / "here"
    found.mkdir(exist_ok=True)
    os.chown(found, site.user.uid, site.user.uid)
    return found


@pytest.mark.both_engines
@pytest.mark.covers("scrun cp")
@PLACES
def test_a_tree(make_site: MakeSite, place: str) -> None:
    site = make_site(place, settings=SHIM)
    life = running(site, _TREE)
    new = here(site) / "new"
    assert site.must("cp", f"{life.id}:/d", str(new)) == ""
    assert (new / "e/f").read_text() == "one\n"
    assert (new / "g").samefile(new / "e/f")
    assert os.readlink(new / "s") == "e/f"
    assert (new / "p").is_fifo()
    assert (new / "e/f").stat().st_mode & 0o7777 == 0o711  # nobody gets its owner's rights
    assert (new / "e").stat().st_mode & 0o7777 == 0o700
    assert {path.lstat().st_uid for path in new.rglob("*")} == {site.user.uid}

    assert site.must("cp", str(new), f"{life.id}:/back") == ""
    said = site.must("exec", life.id, "sh", "-c", "cat /back/e/f; stat -c '%u %a' /back/e/f")
    assert said == "one\n0 711\n"
    over(life)


@TWO
def test_names(make_site: MakeSite, place: str) -> None:
    """Those of a file, of a directory and of what is in it, as with cp -r and docker cp."""
    site = make_site(place, settings=SHIM)
    life = running(site, _TREE)
    folder = here(site)
    inside = life.id + ":"
    site.must("cp", f"{inside}/d/e/f", str(folder))
    site.must("cp", f"{inside}d/s", f"{folder}/named")
    assert (folder / "f").read_text() == (folder / "named").read_text() == "one\n"
    site.must("cp", f"{inside}/d", str(folder))
    assert (folder / "d/e/f").exists()
    site.must("cp", f"{inside}/d/.", str(folder))
    assert (folder / "e/f").exists()
    (folder / "f").write_text("two\n")
    site.must("cp", f"{folder}/f", f"{inside}/d/e/f")
    assert site.must("exec", life.id, "cat", "/d/e/f") == "two\n"

    for words, reason in [
        ((f"{inside}/d", f"{folder}/f"), f"{folder}/f: Not a directory"),
        ((f"{inside}/d/e/f", f"{folder}/no/"), f"{folder}/no/: there is no such directory"),
        ((f"{inside}/no\n", f"{folder}"), "/no? in the container: No such file or directory"),
        ((f"{folder}/no", f"{inside}/d"), f"{folder}/no: No such file or directory"),
        ((f"{folder}/f", f"{inside}/no/f"), "/no in the container: there is no such directory"),
        ((f"{folder}/f", f"{folder}/d"), "neither is in a container"),
        ((f"{inside}/d", f"{inside}/e"), "both are in a container"),
        ((f"{inside}/d", ""), "a path is empty"),
        (("nobody:/d", f"{folder}"), "does not exist"),
    ]:
        assert reason in site.fails("cp", *words)
    assert not (folder / "no").exists()
    over(life)


@TWO
def test_an_archive(make_site: MakeSite, place: str) -> None:
    site = make_site(place, settings=SHIM)
    life = running(site, _TREE)
    process = site.popen("cp", f"{life.id}:/d", "-")
    content, words = process.communicate(timeout=60)
    assert (process.returncode, words) == (0, b"")
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        assert archive.getnames() == ["d", "d/e", "d/e/f", "d/g", "d/p", "d/s"]

    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name in ("a/b/one", "two"):
            archive.addfile(tarfile.TarInfo(name))
    for content, status, words in [
        (made.getvalue(), 0, b""),
        (made.getvalue()[:100], 1, b"scrun: cp: the copy was cut off: it is not complete\n"),
        (
            b"x" * 9999,
            1,
            b"scrun: cp: what arrives is not a tar archive, or damaged: invalid header\n",
        ),
    ]:
        process = site.popen("cp", "-", f"{life.id}:/d", stdin=-1)
        _, said = process.communicate(content, timeout=60)
        assert (process.returncode, said) == (status, words)
    site.must("exec", life.id, "test", "-f", "/d/a/b/one", "-a", "-f", "/d/two")
    over(life)


@pytest.mark.covers("security links, devices, odd names and libraries that scrun cp meets")
@PLACES
def test_what_an_image_may_have(make_site: MakeSite, place: str) -> None:
    """Links that lead out of it, programs in the place of the C library, odd names, devices."""
    site = make_site(place, settings=SHIM)
    folder = here(site)
    (folder / "secret").write_text("mine\n")
    life = running(site, f"""
mkdir -p /d "/d/new
line" /lib/x86_64-linux-gnu /usr/lib/python3
ln -s {folder} /d/away
ln -s {folder}/secret /secret
ln -s / /d/root
ln -s /proc/1/root /d/first
echo 'raise SystemExit(9)' | tee /usr/lib/python3/pwd.py /pwd.py /d/tarfile.py >/dev/null
echo passwd: evil >/etc/nsswitch.conf
""")  # fmt: skip
    site.must("cp", f"{life.id}:/d", f"{folder}/out")
    assert os.readlink(folder / "out/away") == str(folder)
    assert (folder / "out/new\nline").is_dir()
    assert "in the container: No such file" in site.fails(
        "cp", f"{life.id}:/secret", f"{folder}/x"
    )
    site.fails("cp", f"{life.id}:/d/first{folder}/secret", f"{folder}/x")
    # a link that is there is not followed, on either side
    (folder / "in/away").mkdir(parents=True)
    (folder / "in/away/f").write_text("f\n")
    assert "/d/away in the container" in site.fails("cp", f"{folder}/in/.", f"{life.id}:/d")
    assert sorted(path.name for path in folder.iterdir()) == ["in", "out", "secret"]
    assert "is a device" in site.fails("cp", f"{life.id}:/dev/null", f"{folder}/null")
    assert "and stays" in site.fails("cp", f"{folder}/secret", f"{life.id}:/dev/null")
    whole = site.run("cp", f"{life.id}:/", f"{folder}/whole")
    assert (whole.returncode, "of the kernel were left out" in whole.stderr) == (0, True)
    assert (folder / "whole/etc/group").exists()
    assert not (folder / "whole/proc").exists()
    over(life)


@pytest.mark.both_engines
@TWO
def test_a_container_that_ends_meanwhile(make_site: MakeSite, place: str) -> None:
    """What was being written is gone, and no earlier file with that name."""
    site = make_site(place, settings=SHIM)
    life = running(site, "truncate -s 100G /large")
    kept = here(site) / "large"
    kept.write_text("earlier\n")
    process = site.popen("cp", f"{life.id}:/large", str(kept))
    wait_until("it is being written", lambda: len(list(kept.parent.iterdir())) == 2, 30)
    life.kill("KILL")
    _, said = process.communicate(timeout=60)
    assert process.returncode
    assert said == b"scrun: cp: the copy was cut off: it is not complete\n"
    assert [path.read_text() for path in kept.parent.iterdir()] == ["earlier\n"]
    life.wait(30)
    life.delete()


@TWO
@pytest.mark.parametrize("number", [nightly(signal.SIGINT), signal.SIGTERM, signal.SIGKILL])
def test_a_command_that_is_ended(make_site: MakeSite, place: str, number: signal.Signals) -> None:
    """Nothing of it goes on, here or there; `make_site` looks for what is left here."""
    site = make_site(place, settings=SHIM)
    life = running(site, "truncate -s 100G /large")
    folder = here(site)
    process = site.popen("cp", f"{life.id}:/large", str(folder))
    wait_until("it is being written", lambda: any(folder.iterdir()), 30)
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode in (-number, 128 + number)
    wait_until("nothing is left", lambda: not any(folder.iterdir()), 30)
    assert "sleep" in site.must("ps", life.id)
    over(life)


@pytest.mark.parametrize("place", ["local-root", "slurm-user"])
def test_a_successor_goes_on(make_site: MakeSite, place: str) -> None:
    site = make_site(place, settings=SHIM)
    life = running(site, f"head -c {_LARGE} /dev/urandom >/large; md5sum </large >/sum")
    folder = here(site)
    process = site.popen("cp", f"{life.id}:/large", str(folder / "large"))
    wait_until("it is being written", lambda: any(folder.iterdir()), 30)
    assert process.poll() is None
    kill_supervisor(site)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, b"")
    site.must("cp", f"{folder}/large", f"{life.id}:/copied")
    site.must("exec", life.id, "sh", "-c", "md5sum </copied | cmp - /sum")
    over(life)


@pytest.mark.nightly
@TWO
def test_states(make_site: MakeSite, place: str) -> None:
    """A paused one is copied from; one that has not begun, or has ended, is not."""
    site = make_site(place, settings=SHIM)
    folder = here(site)
    life = running(site)
    site.must("pause", life.id)
    site.must("cp", f"{life.id}:/etc/group", str(folder))
    assert (folder / "group").read_text() == "root:x:0:\n"
    site.must("resume", life.id)
    (folder / "large").write_bytes(os.urandom(1 << 20) * 80)  # a tmpfs has 64 MiB by default
    done = site.run("cp", f"{folder}/large", f"{life.id}:/dev/shm")
    said = "scrun: cp: /dev/shm/large in the container: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, said)
    assert site.must("exec", life.id, "ls", "-A", "/dev/shm") == ""
    life.kill("KILL")
    life.wait(30)
    assert "is stopped" in site.fails("cp", f"{life.id}:/etc", str(folder))
    life.delete()
    life = site.life("sleep", "9").created(60)
    assert "is created" in site.fails("cp", f"{life.id}:/etc", str(folder))
    life.delete()


@pytest.mark.oci_conf
@pytest.mark.parametrize("place", ["slurm-user"])
def test_without_a_shim(make_site: MakeSite, place: str) -> None:
    site = make_site(place, settings='[slurm]\nlaunch = "container"\n')
    life = running(site)
    assert 'set launch = "shim"' in site.fails("cp", f"{life.id}:/etc", str(here(site)))
    over(life)
