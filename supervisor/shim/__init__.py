"""The shim: our process in a job's step, which makes and holds the container on the node.

It RUNS ON THE NODE, with the standard library of Python 3.6 or newer and nothing of ours
installed: it comes with the step. It imports nothing but its own folder and `wire`, holds no
settings and decides nothing: it does what the supervisor asks, and reports.

**Start.** The step's command is a Python with a few lines, BOOT (`supervisor.nodes.code`), which
takes the shim's first modules from its environment (`arrival`). Both directions of srun carry
frames (`frames`). srun brings the call `begin`, which says where to connect. The shim asks
for the rest of its code, the event `code`, over the direct connection, or over srun if there is
none, or if that one fails before the code has arrived; it gets that in a frame DATA of stream 0,
compares it with a digest of `begin`, and says `hello`, once more over srun if the connection fails
before the first call. Anything else on standard output is from scripts of the site's.
Standard error is for the text of an internal error only.

**Frames.** A header (`frames.HEADER`: kind, stream, length), then `length` bytes. CALL, REPLY and
EVENT carry JSON; the others belong to a stream. After `begin` they go over the direct connection
only, if there is one. srun holds back what is longer than 1 KiB for some 40 ms.

    CALL    supervisor   {"call": N, "verb": …, …}
    REPLY   shim         {"call": N, …}; a failure has "error": text
    EVENT   shim         {"event": …, …}
    DATA    both         bytes of the stream, at most its window; `frames.WINDOW` at first
    CREDIT  receiver     4 bytes, a number: so many bytes were written onwards, send as many more
    END     sender       nothing: end of file
    CLOSED  receiver     nothing: its reader has gone, send no more
    LINE    shim         a newline, after each frame over srun: slurmstepd passes on whole lines
                         only, and with `srun --unbuffered` standard output is a terminal
    QUIET   both         nothing; see Seals

Streams have numbers, which the supervisor chooses and never uses twice. Each of a container's or
an exec's streams carries DATA in one direction, a terminal in both.

**Events.** `code` is the first: `{"python": the version of its bytecode in hexadecimal, "error":
why there is no direct connection, "waited": for how many seconds nobody accepted one}`, the last
two over srun only. `hello` is sent once: `{"protocol": frames.PROTOCOL, "node": host name, "pid":
its own, "python": "3.11.2", "runtime": path or "", "directory": its directory, "oci_conf": the
path of the node's oci.conf(5) or "", "oci_conf_sum": the CRC-32 of its content, "rank": the number
of its task, "gmac": see Seals, "environment": those of its variables that say where it is and
where srun is}`; it has less than 1 KiB. Where there is an oci.conf, no runtime is looked for.
`ended`:
`{"target": ID, "status": wait status as of waitpid(2), "memory": whether the kernel killed a
process here for want of memory and this may be why a container has ended, "lost": whether its
images went away, and it was killed, "told": whether Slurm had sent SIGTERM before, "usage": what a
container has used, if that is known: {"user", "system": seconds of processor time, "memory": bytes
at most, "memory_of": whose these are: "cgroup", the container's own; "step", that of the step,
which counts the shim and cached files, and had no other container; "process", the largest one's;
"wall": seconds, "limit": bytes that control groups leave Slurm's step, if they limit it}}`. It
comes after the reply to the target's `create` or `exec`, and all END frames of its output follow
or precede it.
`resumed`: the answer to `resume`. `forged`: over srun, `{"error": why, "times": as in `resumed`}`:
the direct connection brought something that the supervisor did not send, and the shim uses it no
longer. `strangers`: `{"who": how many of whom}`, those who connected for an image and did not know
its secret, whenever there are more of them.

**Calls.** A target is a container or an exec, by the `id` that the supervisor gave it, never used
twice.

    begin    port, 0 for none; host: what the supervisor's machine calls itself, for where Slurm's
             variables do not say where srun is; secret: hex; patience: seconds to connect; alone:
             for how many seconds it waits for another supervisor when the connection breaks;
             runtime: one that another shim on the node has tried, or ""; needed: whether it cannot
             do without the connection, and says so on standard error and exits with 1. So it is
             for one of several tasks: srun sends the same to all, and mixes what they say;
             kill_wait: seconds from Slurm's SIGTERM to its SIGKILL; reaches_all: whether Slurm's
             signals reach all processes of the step; told: the signals that have arrived already;
             key: a secret of the user's supervisors, which marks the directories of their shims;
             code: the digests (SHA-256) of the code that it may get; seal_streams, quiet, gmac:
             see Seals. The first call, and the only one without a number and a reply
    resume   token; addresses: list of [host, port]; secret, patience, alone: as for `begin`;
             targets: the ids that the caller knows, others are deleted; written: how many bytes of
             each stream it has written onwards, by its number; protocol: the caller's; without
             one, or with 1, the new connection has no seals; seal_streams, quiet, gmac: as for
             `begin`, the last if `hello` had it.
             This call comes over srun, to a
             shim with a direct connection, from the successor of a supervisor that has died. No
             REPLY, but an EVENT: over srun {"token", "error"}; else as the first frame over the
             new direct connection, which takes the place of the last, {"token", "times": how often
             it was, "targets": by id {"started": bool, "ended": [wait status, memory, lost] or
             null, "usage": as in `ended`, or null}, "inputs": by number of each stream to a
             container that has not ended, [how many of its bytes have arrived, how many more may
             be sent]}. Unwritten bytes are sent again, and the END. Numbers of calls begin anew
    expect   names: of all containers that are still to be created here, as `create` will have them
             {}
    create   id; name: for the runtime; config: the whole config.json, with absolute paths;
             streams; images: the id of a `mount`, which goes with the container; joins: the ids
             of the containers whose namespaces it enters, by the type that `linux.namespaces` has
             of these, without a path; variables: what its programs get instead of the step's
             variables of the same names; filter: the seccomp filter for its rules, as an earlier
             reply had it, or "" to be told; site: see below; network: "own" if it is to have a
             network of its own, "late" if `network` may connect that later, "node" if it is to
             have the node's; networks: of the engine's, which it is to reach by `accept`,
             each with its own address there, as 10.89.0.5/24, at which it may listen, too;
             files: {where it mounts a file of the engine's for it alone: text};
             sockets: where it mounts sockets of the engine's, which it is to reach likewise: it
             gets one of the shim's instead of each;
             processors: {"number": how many of ours it has alone, "of": how many we have, else it
             is not bound, "as": a name; those with the same one have the same}
             {"pid": …}, with "filter" in base64 if that is to be told, "" where that is
             impossible; with "network", the program that connects its own, and "why" it does not
             reach `networks`; or with "host", what the node's network is called
             (`network.host`), and "why" it has that; error: the runtime's words, with "log": its
             log as JSON lines
    network  id, of a container that is not started, or has a network; networks, files: what is to
             be instead of those of `create` from now on
             {"network": …, "why": …}, as for `create`; error
    start    id
             {}; error and log
    handles  id; number
             {"handles": whether the program runs, and handles that signal}
    signal   id; number; all: bool, every process of the container; command: for one of an
             oci.conf, RunTimeKill with that signal
             {}, even if the target has ended; error
    exec     id; container; process: the spec's `process`; streams; or, in a container of an
             oci.conf, instead of `process`, command: the script for `sh -c` that runs it in
             the foreground; variables: more of its environment
             {"pid": …}; error and log
    copy     id; container; files: ["out" or "into", a path there]; streams: it packs the path to
             its standard output, or unpacks its standard input there, and ends as `copying` says
             {"pid": …}; error
    files    id; container; streams: it answers requests of a file system on its standard input
             (`live_files`) on its standard output, until that ends
    rootfs   the same for the root file system alone, without what is mounted in it, but with the
             overlays on these directories in it; over: list of their names
             {"pid": …}; error
    connect  container, by its id; port; stream, which carries the bytes in both directions: those
             to the server from the call on (up to protocol 3: from the reply on); outside: whether
             the container, if it has a network of its own, sees a client that is not on its
             loopback. Else the loopback of its network is tried, 127.0.0.1 and then ::1. END of
             one direction shuts that down, as the server's end does; CLOSED before END says that
             the server has reset the connection
             {}; error: why not, in the kernel's words
    reach    container; place, pid, name: where the caller is (`network.host` of `network.SAME`),
             its pid, and the name of an abstract Unix socket at which it listens. If it is on this
             machine, it can do without the shim (protocol 6): the shim connects to that socket,
             and gives it a line to a process that makes sockets in the container's network
             (`network.serve`). That ends with the line, or with the container
             {"way": "line"}; "own", if the network is the shim's and so the caller's; "" if it is
             elsewhere; error
    accept   container, with a network of its own: waits until it connects to one of `networks`;
             sockets: true, if it is about one of `sockets` instead
             {"number": …, "addresses": [[address, port]]}, or "path": one of `sockets`; or, as it
             has sent a question to a name server there, {"number": …, "text": its bytes in
             base64}. Only the last of these calls is answered
    attach   container; number, of a connection; sockets, as for `accept`; stream, which carries
             its bytes as for `connect`
             {}; error: it has gone
    refuse   container; number; sockets, as for `accept`: that connection is reset, that question
             has no answer
             {}
    answer   container; number, of a question; text: the answer in base64
             {}
    disconnect  stream, of a `connect` or an `attach`
             {}: it is closed, if it was there. Not needed after END in both directions, or an
             error (protocol 4). A successor of the supervisor finds all closed
    resize   id; rows; columns
             {}
    script   script: text for `sh -c`; images: the id of a `mount`, where it is to see them
             {"status": exit status, "text": its standard output and error, at most
             `frames.SCRIPT_OUTPUT` bytes}
    mount    id; files: list of [image, directory to mount it on]; maps: `uidMappings` and
             `gidMappings` of the container, if it has several users, or of a user namespace
             around the container's, in which its runtime is called; users: whether to make that
             even if nothing is mounted (protocol 7); root: [directory to mount an
             overlay on, directory that its options' paths begin in, options], which is the
             container's root file system, or null; by_fuse: whether fuse-overlayfs is to mount
             that, and not the kernel; looks: list of [directory, its inode, the seconds of its
             time or null], which must be these; beside: the id of a container in whose user
             namespace it is to be mounted, as it has the same users; or ""
             {"way": by what}, when all are mounted, in namespaces of their own, with "root" true
             if that was asked for; without files and root: how images would be mounted, but ""
             if there is something in `looks`; error: why not, with "unseen" true where a file
             is not there, "others" the numbers of those in `looks` that are not there, "root" true
             where the kernel refuses the overlay, or there is no fuse-overlayfs
    unmount  id
             {}: they are going, if they were there
    fetch    id; name: of an image; size: its bytes; limit: the most bytes of all images on the
             node's own disk, 0 for any number
             {"path": …}: it is there, and stays until `leave`; {}: it is not, and no other shim
             fetches it: `receive` or `leave` follows; {"comes": true}: another shim fetches it:
             `wait` or `leave` follows; error: there is no room
    wait     id, of a `fetch`
             {"path": …} or {}, as for `fetch`, as soon as no other shim fetches it
    serve    id, of a `fetch`; secret; peers: how many shims will connect for it
             {"addresses": list of [host, port]}: it listens there; before `receive`, if that is
             to follow: peers get what has arrived already
    receive  id; digest: the image's (BLAKE2b, 32 bytes); stream, which brings it; or, from a peer,
             addresses, secret and patience, as for `resume`
             {"path": …}, when all of it is on the disk; error: something else arrived
    leave    id
             {}: it may be removed there; one that is not complete is
    delete   id
             {}: the container's processes are killed, its execs have ended, the runtime has
             forgotten it, its files are gone. Also ends a `create` or `start` that hangs. With
             `words`, what a RunTimeDelete that failed said. Of an exec, it is killed, and what it
             has said is not kept any longer

`streams` is `{"stdin": n, "stdout": n, "stderr": n}`; one that is missing is /dev/null; or
`{"terminal": n, "rows": …, "columns": …}`. After a `create` or `exec` that failed they END without
a byte: what the runtime wrote is in the reply.

The first container gets what the step's program would get for MPI: PMI_FD as descriptor 3, and
the directory that PMIX_SERVER_TMPDIR names.

In a `script`, `$SCRUN_RUNTIME` is the runtime's command with its options, quoted for `eval`.

**site** makes the container by the commands of an oci.conf, instead of a runtime: an
object with `commands`, texts for `sh -c` by name ("run", "kill", "delete", or "create", "start",
"query", "kill", "delete"), in which the digits `pid` stand for `%p`; `step`, a directory, and
`task`, one in it, which are made before and removed after it unless `keep`; `file`, how its
environment is written there ("disabled", "null" or "newline"); `config`, whether config.json is;
and two expressions of Python's or null: variables `NAME=VALUE` that the container does not get
(`hides`), and those that the commands do not (`withheld`). "run" is called by `start`; the others
as their names say, "kill" with SIGKILL, and "query" until it knows the container, and until that
has ended, if its first process is not left to the shim. A terminal is made by the shim.

**Images on the node** (`cache`) are for nodes that do not see the store of images. A peer's
connection begins with the proof below, the peer as the shim; the image's bytes follow.

**Connection.** Each connection begins with a proof from both ends that they know the secret. The
shim, which connects, sends what nobody can say without it (`frames.knock`, 32 bytes that were
never said before), the supervisor 32 random bytes, the shim `frames.proof(secret, b"shim", both)`,
the supervisor `proof(secret, b"supervisor", both)`; `both` is the shim's bytes and the
supervisor's. Frames follow. A `door.Door` at each port keeps out whoever is not a shim.

**Seals.** Somebody between the two can still delay and cut the direct connection, and
nothing more. Each direction has a key, `proof(secret, b"shim's frames", both)` or
`proof(secret, b"supervisor's frames", both)`. A header is followed by a tag of 16 bytes, and so is
a payload, that of DATA with `seal_streams` only. Tags are BLAKE2b with that key, over the number
of the frame (8 bytes; from 1 on, in each direction) and the header (`person` b"head") or the
payload (`person` b"payload"). After 4 MiB in payloads of 16 KiB or more in one direction, they
have the GMAC of NIST SP 800-38D instead, if `hello` had `gmac`: a shim says so if its
processor and the supervisor's, which said it in `begin`, have instructions for that. Its nonce is
the number of the frame, and its AES-128 key the BLAKE2b of nothing with the direction's key (16
bytes, `person` b"gmac"). So nobody waits for a length that somebody has changed, and nothing of a
payload is used before all of it is known to be right.
The event `code` and its answer are plain: the code has its digest. Seals begin with the frame
after it; with `resume`, with the first.

A frame that is left out shows in the number of the next. So who has said nothing for `quiet`
seconds sends one QUIET, and then is silent. Nobody polls, no answer is needed, and who is stopped
or cut off for hours goes on: silence alone is not a forgery. Only the rest of a frame whose
beginning has arrived is not waited for longer than `seals.REST` times as long. An end that gets a
wrong tag passes nothing on any more: to it the connection is broken. A shim says so over srun,
where nobody can hold it back.

**Signals** that Slurm sends the step (SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2) go to
the first process of each container and exec, whether there is a supervisor or not: slurmstepd
sends them to the step's tasks only, so to the shim, unless ProctrackType is proctrack/linuxproc
(`reaches_all`). A container gets each signal that arrived since it was expected and before it was
started, once, in order, when its program handles it, or after two seconds. Signals before the
first `expect`, or `create`, are for the containers of that call.

**Ends.** When its standard input ends or fails, the shim kills and deletes what it made, removes
its directory and exits. When the direct connection breaks it waits for that, for SIGTERM or for
`resume`, as long as `begin` says. Signals do not end it: before a job ends, Slurm sends SIGTERM,
and containers that handle it have until KillWait (slurm.conf(5)) is over, even if srun and the
supervisor got it as well, and are gone. It exits with
the status of its last container (128+n for a signal), for Slurm's accounting. Its directory is
locked while it lives; a shim that starts removes directories of the user's that nobody has locked,
and deletes the containers in them.
"""
