"""Odd but valid images: twenty kinds, of each as many as wanted. All of them run with podman."""

import os
import random
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.harness.oci import (
    Json,
    Layer,
    Layout,
    Members,
    archive,
    folder,
    hard_link,
    link,
    member,
)

REPORT = r"""#!/bin/sh
echo "args: $*"
echo "user: $(id -u):$(id -g)"
echo "groups: $(id -G)"
echo "directory: $(pwd)"
tr '\0' '\n' </proc/self/environ | sed 's/^/env: /'
cut -d' ' -f5 /proc/self/mountinfo | sed 's/^/mount: /'
for name in /*; do echo "top: $name"; done
find /odd | sort | while IFS= read -r path; do
    stat -c 'entry: %n|%F|%a|%u:%g' "$path"
    if [ -h "$path" ]; then echo "leads: $path $(readlink "$path")"
    elif [ -f "$path" ]; then echo "file: $path $(stat -c %Y "$path") $(md5sum <"$path")"; fi
done
exit ${STATUS:-7}
"""
"""What each image runs: it says what a program can see of its image."""

_TOOLS = (
    "sh",
    "id",
    "tr",
    "sed",
    "cut",
    "find",
    "sort",
    "stat",
    "readlink",
    "md5sum",
    "cat",
    "env",
)
_WORDS = ("alpha", "beta", "Gamma", "x y", "ü", "délta", "-n", "e=f")
_PASSWD = "root:x:0:0:root:/root:/bin/sh\napp:x:1000:1001::/home/app:/bin/sh\nbare:x:7:8\n"
_GROUP = "root:x:0:\nstaff:x:50:app,root\napp:x:1001:\nmany:x:60:bare,app\n"


class Odd(NamedTuple):
    """An image.

    Attributes:
        name: Its tag; "" if it has none.
        reference: What follows `oci:` in its name.
        command: What is to be run instead of its own command.
        volumes: Where it says that volumes are.
    """

    name: str
    reference: str
    command: tuple[str, ...]
    volumes: tuple[str, ...]


class _Parts:
    """What an image is made of; a kind changes it."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.layers: list[Layer] = []
        self.config: Json | None = {"Cmd": ["/report"]}
        self.command: tuple[str, ...] = ()
        self.more: Json = {}
        self.several = self.untagged = False

    def add(self, *members: tuple[tarfile.TarInfo, bytes], **how: Any) -> None:
        compression = how.pop("compression", "gzip")
        self.layers.append(Layer(archive(members, **how), compression))

    def set(self, **config: Any) -> None:
        """Change how its program is started."""
        self.config = {**(self.config or {}), **config}

    def word(self) -> str:
        return self.dice.choice(_WORDS)


def base_layer() -> Layer:
    """The layer that all have: busybox, and what a root file system has."""
    busybox = Path("/bin/busybox").read_bytes()
    tools = [link(f"bin/{tool}", "busybox") for tool in _TOOLS]
    folders = [folder(name) for name in (".", "bin", "etc", "odd", "home", "home/app", "root")]
    some = [
        folder("odd/d"), member("odd/d/a", "a"), member("odd/d/b", "b"), folder("odd/d/e"),
        member("odd/d/e/c", "c"), member("odd/f", "f"), link("odd/l", "d"), member("odd/two", "2"),
        hard_link("odd/too", "odd/two"),
    ]  # fmt: skip
    return Layer(archive([
        *folders, member("bin/busybox", busybox, mode=0o755), *tools, folder("tmp", 0o1777),
        folder("run"), folder("dev"), folder("proc"), folder("sys"),
        member("etc/passwd", _PASSWD), member("etc/group", _GROUP),
        member("report", REPORT, mode=0o755),
        *some,
    ]))  # fmt: skip


def _entrypoints(one: _Parts, number: int) -> None:
    ways: list[Json] = [
        {"Entrypoint": ["/report"]}, {"Entrypoint": ["/report"], "Cmd": []},
        {"Entrypoint": [], "Cmd": ["/report", one.word()]},
        {"Entrypoint": None, "Cmd": ["/report"]},
        {"Entrypoint": ["/report", "a"], "Cmd": [one.word(), ""]},
        {"Entrypoint": ["sh", "-c", 'exec /report $0 "$@"'], "Cmd": ["x", one.word()]},
    ]  # fmt: skip
    one.set(**ways[number % 6])
    if number >= 6:
        one.command = ("/report", one.word())
        one.set(Entrypoint=None, Cmd=None)


def _variables(one: _Parts, number: int) -> None:
    odd = (
        "ODD_WITHOUT", "EMPTY=", "A=1=2", "B=two words", "A=again", "lower=ü", "C=a'b\"c", "_=x",
        "HOME=/elsewhere", "PATH=/bin:/nowhere", "D= leading", "E.dot=1", "TERM=dumb",
    )  # fmt: skip
    one.set(Env=one.dice.sample(odd, 3 + number % 8))


def _numbers(one: _Parts, number: int) -> None:
    users = ("0", "1000", "4711", "1000:50", "4711:4711", "0:0", "65534", "2147483647", "1000:",
             "7:60")  # fmt: skip
    one.set(User=users[number % 10])


def _names(one: _Parts, number: int) -> None:
    users = ("root", "app", "bare", "app:staff", "app:7", "root:many", "bare:0", "1000:many",
             "4711:staff", "")  # fmt: skip
    one.set(User=users[number % 10])


def _groups(one: _Parts, number: int) -> None:
    users = ("app", "root,app", "")
    lines = [
        f"g{one.dice.randrange(10**6)}:x:{100 + each}:{one.dice.choice(users)}"
        for each in range(1 + 5 * number)
    ]
    one.add(member("etc/group", "\n".join([*lines, "app:x:1001:"])))
    one.set(User=one.dice.choice(("app", "1000", "root", "app:app")))


def _volumes(one: _Parts, number: int) -> None:
    places = ("/odd/d", "/new", "/odd/d/e", "/data/deep", "/home/app")
    one.set(Volumes={place: {} for place in one.dice.sample(places, 1 + number % 3)})


def _directories(one: _Parts, number: int) -> None:
    directories = ("/no", "/no/where/deep", "/odd/d", "/odd/l", "/odd/d/../d/e", "/", "", "/tmp/",
                   "/odd//d", "/home/app/x")  # fmt: skip
    one.set(WorkingDir=directories[number % 10], User=one.dice.choice(("", "", "app")))


def _links_as_passwd(one: _Parts, number: int) -> None:
    target = ("users", "/etc/users", "../etc/users", "/../../etc/users", "//etc/./users")[
        number % 5
    ]
    one.add(
        member("etc/users", _PASSWD.replace("1000", "1234")),
        link("etc/passwd", target),
        *([link("etc/group", "/home/g"), member("home/g", _GROUP.replace("50", "51"))]
          if number % 2 else []),
    )  # fmt: skip
    one.set(User=one.dice.choice(("app", "app:staff", "1234")))


def _odd_passwd(one: _Parts, number: int) -> None:
    texts = (
        "", "\n\n", "app:x:5:6::/h:/x", "# app\napp:x:5:6:::\n", "app:x:5:6:a:b:c:d:e\n",
        "x\napp:x:5:6\n", "app:x:5:6::/h:/x\napp:x:8:9::/i:/x\n", "\tapp:x:5:6::/h:/x  \n",
        "b:x:4711:3::/h:/x\n", "a:x:4711:1::/h:/x\r\n",
    )  # fmt: skip
    one.add(member("etc/passwd", texts[number % 10]))
    one.set(User="4711" if "app" not in texts[number % 10] else "app")
    if not number:
        one.add(member("etc/.wh.passwd"), member("etc/.wh.group"))


def _whiteouts_of_nothing(one: _Parts, number: int) -> None:
    for _ in range(1 + number % 3):
        names = [f".wh.n{one.dice.randrange(1000)}" for _ in range(1 + number)]
        one.add(*(member(one.dice.choice(("", "odd/", "odd/d/")) + name) for name in names))


def _whiteouts(one: _Parts, number: int) -> None:
    gone = ("odd/d/.wh.a", "odd/.wh.f", "odd/.wh.two", "odd/d/.wh.e", "odd/.wh.l")
    one.add(*(member(name) for name in one.dice.sample(gone, 1 + number % 5)))
    if number % 2:
        one.add(member("odd/.wh.d"), member("odd/x", one.word()))
    if number % 3 == 0:
        one.add(folder("odd/d"), member("odd/d/again"))


def _opaque(one: _Parts, number: int) -> None:
    new = [member(f"odd/d/new{each}", one.word()) for each in range(number % 4)]
    opaque = [member("odd/d/.wh..wh..opq")]
    one.add(folder("odd/d", 0o750), *(opaque + new if number % 2 else new + opaque))
    if number % 3 == 0:
        one.add(folder("odd/d"), member("odd/d/later"))


def _hard_links(one: _Parts, number: int) -> None:
    one.add(
        member("odd/h0", one.word()), *(hard_link(f"odd/h{each}", "odd/h0") for each in (1, 2))
    )
    one.add(
        folder("odd/h"), member("odd/h/0", one.word()),
        *(hard_link(f"odd/h/{each}", f"./odd/h/{each - 1}") for each in range(1, 2 + number)),
        member("odd/.wh.h1") if number % 2 else member("odd/h1", "alone"),
    )  # fmt: skip


def _replaced(one: _Parts, number: int) -> None:
    news: list[Members] = [
        [member("odd/d", "file")], [folder("odd/f"), member("odd/f/x")], [link("odd/d", "f")],
        [folder("odd/l"), member("odd/l/x")], [member("odd/l", "file")], [link("odd/f", "/etc")],
        [member("odd/two", "other")], [member("odd/l/x", "through")],
        [member("odd/p", kind=tarfile.FIFOTYPE), member("odd/d/e", "file")],
        [folder("odd/d", 0o700, owner=(5, 6)), member("odd/d/a", "new", mode=0o600)],
    ]  # fmt: skip
    one.add(*news[number % 10])
    if number % 3 == 2:
        one.add(*news[one.dice.randrange(10)])


def _empty_layers(one: _Parts, number: int) -> None:
    for each in range(1 + number):
        kind = one.dice.choice(("", "gzip", "zstd")) if each else ("", "gzip", "zstd")[number % 3]
        one.layers.append(Layer(archive([]), kind))
    one.add(member("odd/last"))


def _compressions(one: _Parts, number: int) -> None:
    for each in range(1 + number % 4):
        kind = one.dice.choice(("zstd", "zstd", "gzip", ""))
        content = one.dice.randbytes(one.dice.randrange(300_000))
        one.add(member(f"odd/c{each}", content), compression=kind)
    one.add(member("odd/z", "z"), compression="zstd")


def _several_platforms(one: _Parts, number: int) -> None:
    one.several = True


def _no_tag(one: _Parts, number: int) -> None:
    one.untagged = True
    one.several = number % 2 == 1


def _modes(one: _Parts, number: int) -> None:
    names = ("a b", "ü", "new\\line", "-n", "a'b", ".hidden", "n" * 200, "*", "%s", "&")
    found: Members = []
    for each, name in enumerate(one.dice.sample(names, 5)):
        mode = one.dice.choice((0o4755, 0o2755, 0o400, 0, 0o666))
        owner = (one.dice.randrange(5000), one.dice.randrange(5000))
        time = one.dice.randrange(2**31)
        found += [
            member(f"odd/{name}", str(each), mode=mode, owner=owner, time=time),
            folder(f"odd/{name}.d", one.dice.choice((0o1777, 0o2775, 0o700, 0o555))),
            link(f"odd/{name}.l", name, owner=(3, 4)),
        ]
    one.add(*found, form=(tarfile.PAX_FORMAT, tarfile.GNU_FORMAT)[number % 2])


def _rest(one: _Parts, number: int) -> None:
    rest: list[Json] = [
        {"Labels": {"org.scrun.x": "1", "a": ""}}, {"StopSignal": "SIGUSR1"},
        {"ExposedPorts": {"80/tcp": {}, "53/udp": {}}}, {"Unknown": [1, {}]},
        {"Healthcheck": {"Test": ["NONE"]}}, {"Env": None, "Cmd": ["/report"], "Labels": None},
        {"Hostname": "h", "Domainname": "d"}, {"Shell": ["/bin/none", "-c"]},
        {"OnBuild": ["RUN x"], "Tty": True}, {"ArgsEscaped": True, "Env": ["STATUS=3"]},
    ]  # fmt: skip
    one.set(**rest[number % 10])
    one.more = {"created": "2020-01-01T00:00:00Z", "author": one.word(), "history": [
        {"created_by": "x"}, {"empty_layer": True}, {"comment": "y"},
    ]}  # fmt: skip
    if number % 2:
        through = [member("odd/here/through"), hard_link("odd/hl", "odd/here/through")]
        one.add(folder("odd/d"), link("odd/here", "/odd/d"), *through)


KINDS: dict[str, Callable[[_Parts, int], None]] = {
    "entrypoints": _entrypoints, "variables": _variables, "numbers": _numbers, "names": _names,
    "groups": _groups, "volumes": _volumes, "directories": _directories,
    "links-as-passwd": _links_as_passwd, "odd-passwd": _odd_passwd,
    "whiteouts-of-nothing": _whiteouts_of_nothing, "whiteouts": _whiteouts, "opaque": _opaque,
    "hard-links": _hard_links, "replaced": _replaced, "empty-layers": _empty_layers,
    "compressions": _compressions, "several-platforms": _several_platforms, "no-tag": _no_tag,
    "modes": _modes, "rest": _rest,
}  # fmt: skip


def odd_image(place: Path, kind: str, number: int) -> Odd:
    """Make an image in a layout of its own; the same arguments make the same image."""
    one = _Parts(random.Random(f"{kind} {number}"))
    one.layers.append(base_layer())
    KINDS[kind](one, number)
    name = f"{kind}-{number}"
    layout = Layout(place / name)
    descriptor = layout.image(one.layers, one.config or {}, **one.more)
    if one.several:
        others = [layout.image([], {}, architecture=each) for each in ("s390x", "riscv64")]
        unknown = layout.image([], {})
        unknown["platform"] = {"os": "unknown", "architecture": "unknown"}
        manifests = [*others, unknown, descriptor]
        one.dice.shuffle(manifests)
        descriptor = layout.several(manifests)
    layout.tag(descriptor, "" if one.untagged else name)
    os.chmod(layout.path, 0o755)
    reference = str(layout.path) if one.untagged else f"{layout.path}:{name}"
    return Odd(name, reference, one.command, tuple((one.config or {}).get("Volumes") or ()))


def all_of(count: int) -> Iterator[tuple[str, int]]:
    """Yield kinds with numbers."""
    for kind in KINDS:
        for number in range(count):
            yield kind, number
