"""What a container connects to in networks of its engine's, which only the submit host has.

Rules of the container's network namespace send that to sockets of ours in there. The supervisor
takes what arrives, connects to the same address in the engine's network, and carries the bytes.
"""

import _socket as socket  # without its enums, which take some ms
import binascii
import errno
import os
import struct
from _collections import deque  # collections itself takes longer

from .libc import enter
from .loop import READ
from .runtime import CallRefused, found, last_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .children import Children
    from .containers import Reply
    from .loop import Loop

_ORIGINAL_DESTINATION = 80  # SO_ORIGINAL_DST: linux/netfilter_ipv4.h
_ADDRESS = struct.Struct("!2xH4s8x")  # struct sockaddr_in
_QUEUE = 1024
_MOST = 256  # connections and questions that are not carried or answered yet
_PAUSE = 1.0  # seconds
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_LONGEST = 4096  # bytes of a question, or of a refusal
_DOMAIN = 53
_RESET = struct.pack("ii", 1, 0)
_DONE = b"\0"

_NFT = """\
add table ip scrun; delete table ip scrun; add table ip scrun
add chain ip scrun outbound {{ type nat hook output priority -100; }}
add rule ip scrun outbound ip daddr {{ {networks} }} meta l4proto tcp redirect to :{tcp}
add rule ip scrun outbound ip daddr {{ {networks} }} udp dport {domain} redirect to :{udp}
"""
_IPTABLES = (
    "-w -t nat -A OUTPUT -d {networks} -p tcp -j REDIRECT --to-ports {tcp}",
    "-w -t nat -A OUTPUT -d {networks} -p udp --dport {domain} -j REDIRECT --to-ports {udp}",
)


class Outbound:
    """The sockets in one network namespace, and what has arrived at them."""

    def __init__(
        self,
        loop: "Loop",
        children: "Children",
        namespaces: "Sequence[int]",
        networks: "Sequence[str]",
        done: "Callable[[str], None]",
    ) -> None:
        """Begin to make them.

        Args:
            namespaces: Descriptors of the network namespace, and of the user namespace that owns
                it, if that is not ours; they stay the caller's.
            networks: The engine's, as `10.89.0.0/24`.
            done: Called with "", or with why it could not be done.

        Raises:
            OSError: No process or descriptor is left.
        """
        self._loop, self._tell = loop, done
        self._line, theirs = socket.socketpair()
        self._tcp: socket.socket | None = None
        self._udp: socket.socket | None = None
        self._arrived: deque[dict[str, object]] = deque()
        self._reply: Reply | None = None
        self._number = 0
        self._clients: dict[int, tuple[socket.socket, dict[str, object]]] = {}
        self._askers: dict[int, tuple[str, int]] = {}

        def work() -> int:
            _prepare(namespaces, networks, theirs)
            return 0

        try:
            children.fork(work, lambda _: None, [*namespaces, theirs.fileno()])
        except BaseException:
            self._line.close()
            raise
        finally:
            theirs.close()
        loop.watch(self._line.fileno(), READ, self._is_there)

    def _is_there(self, _events: int) -> None:
        self._loop.forget(self._line.fileno())
        rights = socket.CMSG_LEN(8)
        said, ancillary, _, _ = self._line.recvmsg(_LONGEST, rights, socket.MSG_CMSG_CLOEXEC)
        if said != _DONE or not ancillary:
            self._tell(last_line(said) or "it was killed")
            return
        tcp, udp = struct.unpack("ii", ancillary[0][2][:8])
        self._tcp, self._udp = socket.socket(fileno=tcp), socket.socket(fileno=udp)
        for sock in (self._tcp, self._udp):
            sock.setblocking(False)
        self._loop.watch(udp, READ, self._receive)
        self._listen()
        self._tell("")

    def _listen(self) -> None:
        """Accept connections, while there is room; others wait in the kernel's queue."""
        if self._tcp is not None and self._tcp.fileno() >= 0 and len(self._clients) < _MOST:
            self._loop.watch(self._tcp.fileno(), READ, self._accept)

    def _accept(self, _events: int) -> None:
        assert self._tcp is not None
        try:
            fd, _ = self._tcp._accept()  # type: ignore[attr-defined]
        except OSError as error:
            if error.errno in _NO_ROOM:  # no event tells when there is
                self._loop.forget(self._tcp.fileno())
                self._loop.after(_PAUSE, self._listen)
            return
        client = socket.socket(fileno=fd)
        try:
            asked = client.getsockopt(socket.IPPROTO_IP, _ORIGINAL_DESTINATION, _ADDRESS.size)
            port, address = _ADDRESS.unpack(asked)
        except OSError:
            port = 0
        if not port:
            _reset(client)
            return
        client.setblocking(False)
        self._number += 1
        what = {"number": self._number, "addresses": [[socket.inet_ntoa(address), port]]}
        self._clients[self._number] = client, what
        if len(self._clients) >= _MOST:
            self._loop.forget(self._tcp.fileno())
        self._put(what)

    def _receive(self, _events: int) -> None:
        assert self._udp is not None
        try:
            question, asker = self._udp.recvfrom(_LONGEST)
        except OSError:
            return
        if len(self._askers) < _MOST:  # who asks asks again
            self._number += 1
            self._askers[self._number] = asker
            text = binascii.b2a_base64(question, newline=False).decode()
            self._put({"number": self._number, "text": text})

    def _put(self, what: "dict[str, object]") -> None:
        self._arrived.append(what)
        self._give()

    def _give(self) -> None:
        if self._arrived and self._reply is not None:
            reply, self._reply = self._reply, None
            reply(self._arrived.popleft())

    def take(self, reply: "Reply") -> None:
        """Reply with the next that arrives; whoever waited before has gone."""
        self._reply = reply
        self._give()

    def offer_again(self) -> None:
        """Go on for another supervisor: connections that the last one has not carried are new.

        A program that has asked a question asks again.
        """
        self._reply = None
        self._askers.clear()
        self._arrived = deque(what for _, what in self._clients.values())

    def client(self, number: int) -> "socket.socket":
        """Return a connection that has arrived; it is the caller's from now on.

        Raises:
            CallRefused: There is none of this number.
        """
        try:
            client, _ = self._clients.pop(number)
        except KeyError:
            raise CallRefused(f"connection {number} is not there") from None
        self._listen()
        return client

    def refuse(self, number: int) -> None:
        """Reset a connection, or leave a question without an answer."""
        self._askers.pop(number, None)
        if number in self._clients:
            _reset(self.client(number))

    def answer(self, number: int, text: str) -> None:
        """Answer a question, in base64."""
        asker = self._askers.pop(number, None)
        if asker is not None and self._udp is not None:
            try:
                self._udp.sendto(binascii.a2b_base64(text), asker)
            except OSError:  # it does not wait any more
                pass

    def close(self) -> None:
        """Reset all that nobody has taken."""
        for sock in (self._line, self._tcp, self._udp):
            if sock is not None and sock.fileno() >= 0:
                self._loop.forget(sock.fileno())
                sock.close()
        for client, _ in self._clients.values():
            _reset(client)
        self._clients.clear()
        self._reply = None


def _reset(client: "socket.socket") -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    client.close()


def _prepare(
    namespaces: "Sequence[int]", networks: "Sequence[str]", line: "socket.socket"
) -> None:
    """Make both sockets in a network namespace and the rules there, and send them; in a child."""
    try:
        for namespace in reversed(namespaces):
            enter(namespace)
        made = []
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            sock = socket.socket(socket.AF_INET, kind)
            # answers have to come from where rules have sent the questions
            sock.bind(("127.0.0.1", 0))
            made.append(sock)
        made[0].listen(_QUEUE)
        tcp, udp = (sock.getsockname()[1] for sock in made)
        why = _filter({"networks": ",".join(networks), "tcp": tcp, "udp": udp, "domain": _DOMAIN})
        if why:
            line.sendall(why.encode(errors="replace"))
            return
        rights = struct.pack("ii", *(sock.fileno() for sock in made))
        line.sendmsg([_DONE], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    except OSError as error:
        line.sendall(str(error).encode(errors="replace"))


def _filter(words: "dict[str, object]") -> str:
    """Make the rules by nft(8) or iptables(8); return why that is impossible, or ""."""
    import subprocess

    why = "the node has neither nft nor iptables"
    calls = {"nft": [[_NFT.format(**words)]]}
    calls["iptables"] = [rule.format(**words).split() for rule in _IPTABLES]
    for name in calls:
        program = found(name)
        env = dict(os.environ, XTABLES_LOCKFILE=os.devnull)
        for call in calls[name] if program else ():
            done = subprocess.run(
                [program, *call], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env
            )
            if done.returncode:
                why = last_line(done.stdout) or f"{name}: status {done.returncode}"
                break
        else:
            if program:
                return ""
    return why
