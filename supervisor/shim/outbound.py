"""What a container connects to in networks of its engine's, which only the submit host has.

Rules of the container's network namespace send that to sockets of ours in there. The supervisor
takes what arrives, connects to the same address in the engine's network, and carries the bytes.
What is not carried (UDP except questions to name servers, ICMP, SCTP) is refused there: it would
leave for the node's network, where nobody answers, or somebody else.
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
_PORTS = struct.Struct("HH")
_ADD, _REMOVE = (20, 0x405), (21, 5)  # RTM_NEWADDR, RTM_DELADDR; NLM_F_*: rtnetlink(7)
_CHANGE = struct.Struct("=IHHIIBBBBIHH4s")  # struct nlmsghdr, ifaddrmsg, rtattr
_REPLY = struct.Struct("=16xi")
_LOOPBACK, _IFA_LOCAL = 1, 2

_NFT = """\
add table ip scrun; delete table ip scrun; add table ip scrun
add chain ip scrun outbound {{ type nat hook output priority -100; }}
add chain ip scrun others {{ type filter hook output priority 0; }}
"""
_NFT_RULES = """\
add rule ip scrun outbound ip daddr != 127.0.0.0/8 fib daddr type local return
add rule ip scrun outbound ip daddr {{ {networks} }} meta l4proto tcp redirect to :{tcp}
add rule ip scrun outbound ip daddr {{ {networks} }} udp dport {domain} redirect to :{udp}
add rule ip scrun others oifname != "lo" ip daddr {{ {networks} }} reject
"""
_IPTABLES_FIRST = (
    "-w -t nat -N scrun",
    "-w -t nat -A OUTPUT -j scrun",
    "-w -N scrun",
    "-w -A OUTPUT -j scrun",
)
_IPTABLES_AGAIN = ("-w -t nat -F scrun", "-w -F scrun")
_IPTABLES_RULES = (
    "-w -t nat -A scrun ! -d 127.0.0.0/8 -m addrtype --dst-type LOCAL -j RETURN",
    "-w -t nat -A scrun -d {networks} -p tcp -j REDIRECT --to-ports {tcp}",
    "-w -t nat -A scrun -d {networks} -p udp --dport {domain} -j REDIRECT --to-ports {udp}",
    "-w -A scrun ! -o lo -d {networks} -j REJECT",
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
            networks: The engine's, each with the address that it has there, as `10.89.0.5/24`.
            done: Called with "", or with why it could not be done.

        Raises:
            OSError: No process or descriptor is left.
        """
        super().__init__(loop)
        self._children = children
        self._line: socket.socket | None = None
        self._ports: tuple[int, int] | None = None
        self._udp: socket.socket | None = None
        self._askers: dict[int, tuple[str, int]] = {}
        self._own: set[str] = set()
        self.lead(namespaces, networks, done)

    def lead(
        self, namespaces: "Sequence[int]", networks: "Sequence[str]", done: "Callable[[str], None]"
    ) -> None:
        """Send what is for these networks, and no others any more, to the sockets.

        Raises:
            OSError: No process or descriptor is left.
        """
        self._tell = done
        self._hang_up()
        line, theirs = socket.socketpair()
        ports, before = self._ports, self._own
        self._own = {address for address in map(_own_address, networks) if address}
        changes = [(_REMOVE, one) for one in before - self._own]
        changes += [(_ADD, one) for one in self._own - before]

        def work() -> int:
            _prepare(namespaces, networks, theirs, ports, changes)
            return 0

        try:
            self._children.fork(work, lambda _: None, [*namespaces, theirs.fileno()])
        except BaseException:
            line.close()
            raise
        finally:
            theirs.close()
        self._line = line
        self._loop.watch(line.fileno(), READ, self._is_there)

    def _hang_up(self) -> None:
        if self._line is not None:
            self._loop.forget(self._line.fileno())
            self._line.close()
            self._line = None

    def _is_there(self, _events: int) -> None:
        assert self._line is not None
        rights = socket.CMSG_LEN(8)
        said, ancillary, _, _ = self._line.recvmsg(_LONGEST, rights, socket.MSG_CMSG_CLOEXEC)
        self._hang_up()
        if said[:1] != _DONE or not (ancillary or self._ports):
            self._tell(last_line(said) or "it was killed")
            return
        if ancillary:
            self._ports = _PORTS.unpack(said[1:])
            self._take(*struct.unpack("ii", ancillary[0][2][:8]))
        self._tell("")

    def _take(self, tcp: int, udp: int) -> None:
        self.listen(socket.socket(fileno=tcp), _asked)
        self._udp = socket.socket(fileno=udp)
        self._udp.setblocking(False)
        self._loop.watch(udp, READ, self._receive)

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
        self._hang_up()
        if self._udp is not None and self._udp.fileno() >= 0:
            self._loop.forget(self._udp.fileno())
            self._udp.close()
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
    namespaces: "Sequence[int]",
    networks: "Sequence[str]",
    line: "socket.socket",
    ports: "tuple[int, int] | None",
    changes: "Sequence[tuple[tuple[int, int], str]]",
) -> None:
    """Make rules in a network namespace, and both sockets, which are sent, before; in a child.

    Args:
        ports: Those of the sockets, if they are there already.
        changes: Of the addresses of its own that it has there.
    """
    try:
        for namespace in reversed(namespaces):
            enter(namespace)
        for what, address in changes:
            _change_address(what, address)
        made = []
        for kind in () if ports else (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            sock = socket.socket(socket.AF_INET, kind)
            # answers have to come from where rules have sent the questions
            sock.bind(("127.0.0.1", 0))
            made.append(sock)
        if made:
            made[0].listen(_QUEUE)
        tcp, udp = ports or (sock.getsockname()[1] for sock in made)
        words = {"networks": ",".join(networks), "tcp": tcp, "udp": udp, "domain": DOMAIN}
        why = _filter(words, is_first=not ports)
        if why or not made:
            line.sendall(why.encode(errors="replace") or _DONE)
            return
        rights = struct.pack("ii", *(sock.fileno() for sock in made))
        line.sendmsg(
            [_DONE, _PORTS.pack(tcp, udp)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
        )
    except OSError as error:
        line.sendall(str(error).encode(errors="replace"))


def _own_address(network: str) -> str:
    """Return the address that a network comes with; "" if it is that of the network itself."""
    address, _, bits = network.partition("/")
    number = int.from_bytes(socket.inet_aton(address), "big")
    return address if number & ((1 << (32 - int(bits))) - 1) else ""


def _change_address(what: "tuple[int, int]", address: str) -> None:
    """Have the loopback have an address, or no more: servers listen at it, by the host's name.

    Raises:
        OSError: The kernel refuses.
    """
    attribute = (8, _IFA_LOCAL, socket.inet_aton(address))
    message = (_CHANGE.size, *what, 1, 0, socket.AF_INET, 32, 0, 0, _LOOPBACK)
    kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)
    kernel.send(_CHANGE.pack(*message, *attribute))
    (error,) = _REPLY.unpack_from(kernel.recv(_LONGEST))
    kernel.close()
    if error:
        raise OSError(-error, f"{address}: {os.strerror(-error)}")


def _filter(words: "dict[str, object]", is_first: bool) -> str:
    """Make the rules by nft(8) or iptables(8); return why that is impossible, or ""."""
    import subprocess

    why = "the node has neither nft nor iptables"
    nft, iptables = [_NFT], [*(_IPTABLES_FIRST if is_first else _IPTABLES_AGAIN)]
    if words["networks"]:
        nft.append(_NFT_RULES)
        iptables += _IPTABLES_RULES
    calls = {"nft": [["".join(nft).format(**words)]]}
    calls["iptables"] = [rule.format(**words).split() for rule in iptables]
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
