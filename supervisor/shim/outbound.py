"""What a container connects to in networks of its engine's, which only the submit host has.

Rules of the container's network namespace send that to sockets of ours in there. The supervisor
takes what arrives, connects to the same address in the engine's network, and carries the bytes.
"""

import _socket as socket  # without its enums, which take some ms
import binascii
import errno
import os
import struct

from scrun.supervisor.wire.filters import DOMAIN, ORIGINAL_DESTINATION, PROGRAMS

from .arrivals import MOST, Arrivals
from .libc import enter
from .loop import READ
from .runtime import found, last_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .children import Children
    from .loop import Loop

_ADDRESS = struct.Struct("!2xH4s8x")  # struct sockaddr_in
_QUEUE = 1024
_LONGEST = 4096  # bytes of a question, or of a refusal
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


class Outbound(Arrivals):
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
        super().__init__(loop)
        self._tell = done
        self._line, theirs = socket.socketpair()
        self._udp: socket.socket | None = None
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
        self._udp = socket.socket(fileno=udp)
        self._udp.setblocking(False)
        self._loop.watch(udp, READ, self._receive)
        self.listen(socket.socket(fileno=tcp), _asked)
        self._tell("")

    def _receive(self, _events: int) -> None:
        assert self._udp is not None
        try:
            question, asker = self._udp.recvfrom(_LONGEST)
        except OSError:
            return
        if len(self._askers) < MOST:  # who asks asks again
            number = self.number()
            self._askers[number] = asker
            text = binascii.b2a_base64(question, newline=False).decode()
            self.put({"number": number, "text": text})

    def offer_again(self) -> None:
        """See `Arrivals.offer_again`; a program that has asked a question asks again."""
        self._askers.clear()
        super().offer_again()

    def refuse(self, number: int) -> None:
        """Reset a connection, or leave a question without an answer."""
        self._askers.pop(number, None)
        super().refuse(number)

    def answer(self, number: int, text: str) -> None:
        """Answer a question, in base64."""
        asker = self._askers.pop(number, None)
        if asker is not None and self._udp is not None:
            try:
                self._udp.sendto(binascii.a2b_base64(text), asker)
            except OSError:  # it does not wait any more
                pass

    def close(self) -> None:
        for sock in (self._line, self._udp):
            if sock is not None and sock.fileno() >= 0:
                self._loop.forget(sock.fileno())
                sock.close()
        super().close()


def _asked(client: "socket.socket") -> "dict[str, object]":
    """Return the address that a client has asked for, before rules sent it to our socket.

    Raises:
        OSError: Nobody knows.
    """
    asked = client.getsockopt(socket.IPPROTO_IP, ORIGINAL_DESTINATION, _ADDRESS.size)
    port, address = _ADDRESS.unpack(asked)
    if not port:
        raise OSError(errno.EADDRNOTAVAIL, "no port")
    return {"addresses": [[socket.inet_ntoa(address), port]]}


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
        why = _filter({"networks": ",".join(networks), "tcp": tcp, "udp": udp, "domain": DOMAIN})
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
    for name in PROGRAMS:
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
