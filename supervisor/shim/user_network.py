"""Connects a container's own network namespace with the node's network, by a program of users.

Without one nothing in it reached the cluster. Podman uses the same programs on a laptop.
"""

import _socket as socket  # without its enums, which take some ms
import os

from .loop import READ
from .network import INTERFACE
from .processes import kill_quietly
from .runtime import found, last_line
from .space import Space

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from .children import Children
    from .loop import Loop
    from .outbound import Outbound
    from .space import Maps

_TUN = "/dev/net/tun"
_SLIRP, _PASTA = "slirp4netns", "pasta"
_ADDRESS, _GATEWAY = "10.0.2.100", "10.0.2.2"  # slirp4netns's own, as the next
_RESOLV_CONF = "/etc/resolv.conf"
RESOLVER = "10.0.2.3"
"""slirp4netns's name server, which podman writes into resolv.conf."""

PASTA_RESOLVER = "169.254.1.1"
"""pasta's, by newer versions of podman; it is not there, whatever connects the network."""

_PATIENCE, _PAUSE = 10.0, 1.0  # seconds
_WORDS = 4096
_LARGEST = 1 << 16
_SIGTERM = 15


def way(call: "Mapping[str, Any]") -> "tuple[str, str]":
    """Return the program that connects a container's network, or "" and why there is none.

    Args:
        call: That to create it, or to mount its root file system; see the package's docstring.
    """
    if "site" in call:
        return "", "the site's oci.conf makes it"
    maps = call["maps"] if "maps" in call else maps_of(call["config"])
    root = os.geteuid() == 0
    if bool(maps) == root or (maps and not _has_root(maps)):
        return "", "its users cannot have one"
    if not os.access(_TUN, os.R_OK | os.W_OK):
        return "", f"the node has no {_TUN} for users"
    program = found(_SLIRP) or found(_PASTA)
    return program, "" if program else f"the node has neither {_SLIRP} nor {_PASTA}"


def maps_of(config: "Mapping[str, Any]") -> "Maps | None":
    """Return `uidMappings` and `gidMappings` of a config.json; None without them."""
    linux = config.get("linux") or {}
    names = ("uidMappings", "gidMappings")
    return {name: linux[name] for name in names} if all(map(linux.get, names)) else None


def _has_root(maps: "Maps") -> bool:
    """Tell whether user 0 is among the users: who is not cannot make a container there."""
    return all(any(line["containerID"] == 0 for line in lines) for lines in maps.values())


def fit_files(
    config: "dict[str, Any]",
    place: str,
    files: "Mapping[str, str]",
    networks: "Sequence[str]",
    server: str = "",
) -> None:
    """Give a container its engine's files, and a resolv.conf without servers out of its reach.

    Each question would first wait some seconds for those.

    Args:
        config: Its config.json, whose mounts are changed.
        place: A directory of its own, for the files.
        files: What is in files of its engine's for it alone, by where it mounts them.
        networks: Where it reaches no servers, as `10.89.0.0/24`.
        server: What it has if it had no others; "": those of the node.
    """
    for mount in config.get("mounts") or []:
        name = mount.get("destination")
        if name != _RESOLV_CONF and name not in files:
            continue
        try:
            text = files[name] if name in files else _text_of(mount["source"])
            fitted = _fitted(text, networks, server) if name == _RESOLV_CONF else text
        except (KeyError, OSError, UnicodeDecodeError):  # the runtime says it, if it matters
            continue
        if name in files or fitted != text:
            mount["source"] = _write(place, name, fitted)


def write_files(
    place: str, files: "Mapping[str, str]", networks: "Sequence[str]", server: str
) -> None:
    """Change the files that `fit_files` has written, with its arguments."""
    for name, text in files.items():
        _write(place, name, _fitted(text, networks, server) if name == _RESOLV_CONF else text)


def _write(place: str, name: str, text: str) -> str:
    path = os.path.join(place, os.path.basename(name))
    with open(path, "w") as file:
        file.write(text)
        os.fchmod(file.fileno(), 0o644)
    return path


def _fitted(text: str, networks: "Sequence[str]", server: str) -> str:
    lines = text.splitlines()
    kept = [line for line in lines if not _is_server_in(line, networks)]
    if len(kept) == len(lines):
        return text
    if not any(line.split()[:1] == ["nameserver"] for line in kept):
        instead = [f"nameserver {server}"] if server else _text_of(_RESOLV_CONF).splitlines()
        kept += [line for line in instead if line not in kept]
    return "\n".join(kept) + "\n"


def _text_of(path: str) -> str:
    with open(path) as file:
        return file.read(_LARGEST)


def _is_server_in(line: str, networks: "Sequence[str]") -> bool:
    words = line.split()
    if len(words) < 2 or words[0] != "nameserver":
        return False
    for network in networks:
        base, _, bits = network.partition("/")
        try:
            server, first = (
                int.from_bytes(socket.inet_aton(text), "big") for text in (words[1], base)
            )
        except OSError:  # of IPv6
            return False
        if (server ^ first) >> (32 - int(bits)) == 0:
            return True
    return False


class UserNetwork:
    """A network namespace, and what connects it as long as it is wanted.

    Attributes:
        name: The program's.
        space: The namespaces that it is among.
        outbound: What it connects to in networks of its engine's; None if that cannot be had.
        lacks: Why that cannot be had, or "".
    """

    def __init__(
        self,
        loop: "Loop",
        children: "Children",
        program: str,
        place: str,
        space: "Space | Maps | None",
        networks: "Sequence[str]",
        done: "Callable[[str], None]",
        late: bool = False,
    ) -> None:
        """Begin to connect it; or, if that is `late`, only make it, until `connect`.

        Args:
            place: The shim's own directory.
            space: The namespaces; or the users of the container, and they are made.
            networks: Those of the engine's that it is to reach.
            done: Called with "", or with why it could not be done.

        Raises:
            OSError: No process or descriptor is left.
        """
        self.name = os.path.basename(program)
        self._loop, self._children, self._place = loop, children, place
        self._program = program
        self._tell: Callable[[str], None] | None = done
        self._is_own = not isinstance(space, Space)
        self._held: list[int] = []
        self._ready = -1
        self._pid = 0
        self._is_wanted = True
        self._networks = networks
        self._is_late = late
        self.outbound: Outbound | None = None
        self.lacks = ""
        self.space = space if isinstance(space, Space) else Space(space, network=True)
        self._late = loop.after(_PATIENCE, lambda: self._done(f"not after {_PATIENCE:g} s"))
        if self._is_own:
            loop.watch(self.space.said, READ, self._is_there)
        elif late:
            loop.cancel(self._late)
            self._late = loop.after(0, lambda: self._done(""))
        else:
            self._connect()

    def connect(self, networks: "Sequence[str]", done: "Callable[[str], None]") -> None:
        """Connect it now, or to other networks of the engine's; see `__init__`."""
        if not self._is_late:
            self._lead(networks, done)
            return
        self._is_late, self._networks, self._tell = False, networks, done
        self._late = self._loop.after(_PATIENCE, lambda: self._done(f"not after {_PATIENCE:g} s"))
        self._connect()

    def _lead(self, networks: "Sequence[str]", done: "Callable[[str], None]") -> None:
        if self.outbound is None or list(networks) == list(self._networks):
            done("")
            return

        def led(why: str) -> None:
            if not why:
                self._networks = networks
            done(why)

        self.outbound.lead(self.space.network(), networks, led)

    def _is_there(self, _events: int) -> None:
        self._loop.forget(self.space.said)
        try:
            self.space.take()
            self.space.dismiss()
            if self._is_late:
                self._done("")
            else:
                self._connect()
        except (OSError, ValueError) as error:
            self._done(str(error))

    def _connect(self) -> None:
        name = os.path.join(self._place, "network")
        words = os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        os.unlink(name)
        namespaces = self.space.network()
        self._pid_file = os.path.join(self._place, f"pasta-{namespaces[0]}")
        stdio: Sequence[int | None] = (*(*namespaces, words)[:2], words)
        passed: list[int] = []
        if self.name == _SLIRP:
            self._ready, is_ready = os.pipe()
            over, wanted = os.pipe()
            self._held.append(wanted)
            stdio, passed = (None, words, words), [*namespaces, is_ready, over]
            self._loop.watch(self._ready, READ, self._is_ready)
        command = self._command(len(namespaces))

        def ended(status: int) -> None:
            said = last_line(os.pread(words, _WORDS, 0)) or f"status {status}"
            os.close(words)
            self._ended(status, said)

        try:
            self._pid = self._children.spawn(command, ended, stdio, passed=passed)
        except BaseException:
            os.close(words)
            raise
        finally:
            for fd in passed[len(namespaces) :]:
                os.close(fd)

    def _command(self, namespaces: int) -> "list[str]":
        """Return the command, whose descriptors from 3 on are the namespaces, and what follows.

        Those of pasta are from 0 on: since 2024 it first closes all that it has from 3 on.
        """
        if self.name == _PASTA:
            user = ["--userns", "/proc/self/fd/1"] if namespaces > 1 else ["--runas", "0"]
            ports = [word for option in "tuTU" for word in (f"-{option}", "none")]
            command = [self._program, "--config-net", "--no-map-gw", *ports, "--quiet"]
            # else it has the node's address, and does not reach the node by that
            command += ["--address", _ADDRESS, "--netmask", "24", "--gateway", _GATEWAY]
            # newer ones look there once a second, and end because the path is gone by then
            command += ["--ns-ifname", INTERFACE, "--no-netns-quit"]
            command += ["--dns-forward", RESOLVER, "--pid", self._pid_file]
            return [*command, *user, "--netns", "/proc/self/fd/0"]
        command = [self._program, "--configure", "--mtu=65520", "--disable-host-loopback"]
        command += ["--enable-seccomp", f"--ready-fd={3 + namespaces}"]
        command += [f"--exit-fd={4 + namespaces}", "--netns-type=path"]
        user = ["--userns-path", "/proc/self/fd/4"] if namespaces > 1 else []
        return [*command, *user, "/proc/self/fd/3", INTERFACE]

    def _is_ready(self, _events: int) -> None:
        self._loop.forget(self._ready)
        if os.read(self._ready, 1):
            self._is_connected()

    def _is_connected(self) -> None:
        """Go on with the engine's networks, if there are any."""
        if not self._networks or self.outbound is not None:
            self._done("")
            return
        from .outbound import Outbound

        def done(why: str) -> None:
            if why and self.outbound is not None:
                self.outbound.close()
                self.outbound, self.lacks = None, why
            self._done("")

        namespaces, networks = self.space.network(), self._networks
        try:
            self.outbound = Outbound(self._loop, self._children, namespaces, networks, done)
        except OSError as error:
            self._done(str(error))

    def _ended(self, status: int, said: str) -> None:
        self._pid = 0
        if self.name == _PASTA and not status:  # it goes on in the background
            try:
                with open(self._pid_file) as file:
                    self._pid = int(file.read(32))
                os.unlink(self._pid_file)
            except (OSError, ValueError) as error:
                status, said = 1, str(error)
            else:
                self._children.claim(self._pid, lambda _: self._ended(1, ""))
                self._is_connected()
                return
        if self._is_wanted and self._tell is None:  # it was connected
            self._late = self._loop.after(_PAUSE, self._connect_again)
            return
        self._done(f"{self.name}: {said}")

    def _connect_again(self) -> None:
        """Do so after the program was killed, by the kernel for want of memory, for example."""
        self._close()
        try:
            self._connect()
        except OSError:  # no process or descriptor is left
            self._late = self._loop.after(_PAUSE, self._connect_again)

    def _done(self, why: str) -> None:
        self._loop.cancel(self._late)
        tell, self._tell = self._tell, None
        if tell is not None:
            if why:
                self.let_go()
            tell(why)

    def cancel(self, why: str) -> None:
        """Disconnect it, and say why, if somebody waits for it."""
        self._done(why)
        self.let_go()

    def let_go(self) -> None:
        """Disconnect it; nobody is told any more."""
        self._tell = None
        self._is_wanted = False
        self._loop.cancel(self._late)
        if self._pid:
            kill_quietly(self._pid, _SIGTERM)
        self._close()
        if self.outbound is not None:
            self.outbound.close()
            self.outbound = None
        if self._is_own:
            self._loop.forget(self.space.said)
            self.space.let_go()
            self._is_own = False

    def _close(self) -> None:
        """Close what a program holds on to."""
        for fd in self._held:
            os.close(fd)
        self._held.clear()
        if self._ready >= 0:
            self._loop.forget(self._ready)
            os.close(self._ready)
            self._ready = -1
