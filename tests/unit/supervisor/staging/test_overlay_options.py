"""The options of overlay mounts, as mountinfo has them and as mounts get them."""

from typing import Any

import pytest

from scrun.supervisor.contracts.staged import OfTask, config_of_task, with_place
from scrun.supervisor.staging.layers import (
    LONGEST,
    Unusable,
    is_plain,
    mount_of_layers,
    options_of,
    parse,
)

READ = {
    "podman": (
        "rw,lowerdir=/s/overlay/l/AB:/s/overlay/l/CD,upperdir=/s/overlay/1/diff,"
        "workdir=/s/overlay/1/work,redirect_dir=nofollow,uuid=on,volatile,userxattr",
        ("/s/overlay/1/diff", "/s/overlay/l/AB", "/s/overlay/l/CD"),
        True,
    ),
    "relative": (
        "rw,lowerdir=l/AB:l/CD,upperdir=1/diff,workdir=1/work,index=off,nfs_export=off",
        ("1/diff", "l/AB", "l/CD"),
        False,
    ),
    "one by one": (
        "rw,lowerdir+=/a,lowerdir+=/b:c,upperdir=/u,workdir=/w",
        ("/u", "/a", "/b:c"),
        False,
    ),
    # the path `/a:,b \` as the kernel shows it: a comma, a blank, a backslash are octal
    "escaped": (
        "rw,lowerdir=/a\\134:\\054b\\040\\134\\134:/c,upperdir=/u\\054v,workdir=/w",
        ("/u,v", "/a:,b \\", "/c"),
        False,
    ),
}


@pytest.mark.parametrize("case", READ)
def test_read(case: str) -> None:
    options, layers, users = READ[case]
    overlay = parse(options)
    assert overlay.layers == layers
    assert overlay.users is users


REFUSED = {
    "nothing is written": ("ro,lowerdir=/a:/b", "no upper"),
    "no layers": ("rw,upperdir=/u,workdir=/w", "no upper and lower"),
    "data only": ("rw,lowerdir=/a::/b,upperdir=/u,workdir=/w", "data only"),
    "a label": ("rw,context=x,lowerdir=/a,upperdir=/u,workdir=/w", "context=x"),
    "of a later kernel": ("rw,new=1,lowerdir=/a,upperdir=/u,workdir=/w", "new=1"),
    "who knows how this is escaped": ("rw,lowerdir=/a,upperdir=/\\134u,workdir=/w", "no upper"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_understood_is_not_used(case: str) -> None:
    options, why = REFUSED[case]
    with pytest.raises(Unusable, match=why):
        parse(options)


@pytest.mark.parametrize("word", ["metacopy=on", "redirect_dir=on", "redirect_dir=follow"])
def test_what_leaves_marks_in_a_container_s_own_layer(word: str) -> None:
    """The others can be copied, and mounted then."""
    options = f"rw,lowerdir=/a,upperdir=/u,workdir=/w,{word}"
    assert parse(options).why_not == f"are mounted with {word}"


def test_written() -> None:
    words = options_of(["/l/0/usr", "/l/1/usr"], ("/u/usr", "/w/usr"), users=True)
    assert words == [
        "lowerdir=/l/0/usr:/l/1/usr", "upperdir=/u/usr", "workdir=/w/usr", "userxattr",
    ]  # fmt: skip
    assert mount_of_layers("usr", words) == {
        "destination": "/usr", "type": "overlay", "source": "overlay", "options": words,
    }  # fmt: skip
    assert parse(",".join(words)).layers == ("/u/usr", "/l/0/usr", "/l/1/usr")
    roots = options_of(["/l/0/usr"], ("/u/usr", "/w/usr"), users=False)
    assert "userxattr" not in roots
    assert parse(",".join(roots)).users is False


def test_nothing_can_be_written() -> None:
    assert options_of(["/a", "/b"], None, users=True) == ["lowerdir=/a:/b", "userxattr"]


def test_each_task_writes_elsewhere() -> None:
    words = options_of(["/s/overlay/l/0"], ("/s/overlay/upper/a", "/s/overlay/work/a"), users=True)
    own = ["upperdir=/t/upper/a", "workdir=/t/work/a"]
    assert with_place(words, "/s/overlay/", "/t") == [words[0], *own, "userxattr"]
    config: dict[str, Any] = {
        "mounts": [{"type": "bind"}, mount_of_layers("a", words)],
        "root": {},
    }
    found = config_of_task(config, "/s", OfTask("/t"))
    assert found["mounts"][0] == {"type": "bind"}
    assert found["mounts"][1]["options"][1:3] == own
    assert config["mounts"][1]["options"] == words
    assert config_of_task({"root": {}}, "/s", OfTask("/t")) == {"root": {}, "mounts": []}


def test_more_than_the_kernel_takes() -> None:
    layers = [f"/l/{number}/usr" for number in range(LONGEST // 10)]
    with pytest.raises(Unusable, match="too many"):
        options_of(layers, ("/u", "/w"), users=True)


@pytest.mark.parametrize("path", ["/a:b", "/a,b", "/a b", "/a\\b", "/a\nb", "/a'b", "/ä", "/a$b"])
def test_paths_that_mean_something_else(path: str) -> None:
    assert not is_plain(path)


def test_paths_that_mean_themselves() -> None:
    assert is_plain("/scratch/user-1/scrun_0.x/overlay/l/0/lib64")
