"""The grammar of the command line: one table for parser, help and completion.

It has all of scrun(1), and every option that runc (1.1 to 1.3) and crun (1.8 to 1.28)
have for the same operations, so that scrun can replace them. Where they disagree, the
manual wins: ``-v`` is verbosity here, ``-V`` the version.

A new operation is one entry of ``COMMANDS``. The table consists of plain tuples because
every call of scrun loads it, and building objects would cost more than looking it up.
"""

Option = tuple[str, str, str | None, bool, bool, str]
"""One option: its long name, its short names (one character each), its metavar, whether
it is used, whether it may be repeated, and one line of help.

A flag has None as its metavar. Brackets mean an optional value: ``--name=value``, or
``--name value`` if that value is one of those listed, or a number for ``[N]``. Bars
separate the possible values.
"""

Command = tuple[str, tuple[str, ...], tuple[Option, ...]]
"""One command: one line of help, its operands, its options.

Operands are written as in scrun(1): ``<needed>``, ``[optional]``. One that ends in
``...]`` takes all remaining arguments, its own options included, so scrun's options end
at the first operand. One that ends in ``]...`` takes all remaining operands, too, but
what looks like an option among them has to follow ``--``.
"""

USED, IGNORED = True, False
ONCE, MANY = False, True

CONTAINER = "<container-id>"
PERHAPS_CONTAINER = "[container-id]"
MORE_CONTAINERS = "[container-id]..."

# accepted wherever options are, as argp does for crun
ASKED: tuple[Option, ...] = (
    ("help", "h?", None, USED, ONCE, "Show this help and exit"),
    ("usage", "", None, USED, ONCE, "Show how to call scrun, in short, and exit"),
)

GLOBAL: tuple[Option, ...] = (
    ("cgroup-manager", "", "MANAGER", IGNORED, ONCE, "Manager of cgroups: the node has its own"),
    ("config-file", "", "FILE", USED, ONCE, "Read this scrun.toml instead of those found"),
    ("criu", "", "PATH", IGNORED, ONCE, "Program for checkpoints"),
    ("debug", "", None, USED, ONCE, "Log debug messages"),
    ("engine", "", "NAME", USED, ONCE, "Where to run: slurm, local, …; see 'scrun plugins'"),
    ("log", "", "FILE", USED, ONCE, "Append errors to FILE, as well as to stderr"),
    ("log-format", "", "text|json", USED, ONCE, "How to write to --log (default: text)"),
    ("log-level", "", "LEVEL", USED, ONCE, "What to log: error, warning, info, debug"),
    ("root", "", "DIR", USED, ONCE, "State and sockets (default: /run/user/UID/scrun)"),
    ("rootless", "", "[auto|true|false]", IGNORED, ONCE, "scrun is always rootless"),
    ("slurm-conf", "f", "PATH", USED, ONCE, "Use this slurm.conf"),
    ("stager", "", "NAME", USED, ONCE, "How to stage: lua, builtin, …; see 'scrun plugins'"),
    ("systemd-cgroup", "", None, IGNORED, ONCE, "Use systemd for cgroups"),
    ("verbose", "v", None, USED, MANY, "Log more; repeat it for even more"),
    ("version", "V", None, USED, ONCE, "Show the version and exit"),
    *ASKED,
)

_BUNDLE: Option = ("bundle", "b", "DIR", USED, ONCE, "Bundle (default: the working directory)")
_CONFIG: Option = ("config", "f", "FILE", USED, ONCE, "Instead of the bundle's config.json")
_CONSOLE: Option = (
    "console-socket", "", "SOCKET", USED, ONCE, "Send the terminal's master to SOCKET",
)  # fmt: skip
_PID_FILE: Option = ("pid-file", "", "FILE", USED, ONCE, "Lock FILE and write the pid to it")
_PRESERVE: Option = ("preserve-fds", "", "[N]", USED, ONCE, "Pass N more file descriptors")
_PIDFD: Option = ("pidfd-socket", "", "SOCKET", IGNORED, ONCE, "Send a pidfd to SOCKET")

_CREATE: tuple[Option, ...] = (
    _BUNDLE,
    _CONFIG,
    _CONSOLE,
    ("no-new-keyring", "", None, IGNORED, ONCE, "Keep the session keyring"),
    ("no-pivot", "", None, IGNORED, ONCE, "Do not use pivot_root"),
    ("no-subreaper", "", None, IGNORED, ONCE, "Do not reap orphans"),
    _PID_FILE,
    _PIDFD,
    _PRESERVE,
)

OF_IMAGES: tuple[Option, ...] = (
    ("all-env", "", None, USED, ONCE, "Image: pass on all variables that it does not set"),
    ("cpus-per-task", "c", "N", USED, ONCE, "Image: processors for each task"),
    ("entrypoint", "", "COMMAND", USED, ONCE, "Image: instead of its own entrypoint"),
    ("env", "e", "NAME=VALUE", USED, MANY, "Image: set a variable, or pass yours on"),
    ("gpus", "", "N", USED, ONCE, "Image: GPUs of the job"),
    ("home", "", None, USED, ONCE, "Image: mount your home directory"),
    ("mem", "", "SIZE", USED, ONCE, "Image: memory on each node"),
    ("mount", "", "SRC:DST", USED, MANY, "Image: mount a directory; SRC:DST:ro"),
    ("name", "", "NAME", USED, ONCE, "Image: the container's id"),
    ("no-entrypoint", "", None, USED, ONCE, "Image: run the command alone"),
    ("no-home", "", None, USED, ONCE, "Image: do not (default)"),
    ("nodes", "N", "N", USED, ONCE, "Image: nodes of the job"),
    ("ntasks", "n", "N", USED, ONCE, "Image: tasks of the job"),
    ("partition", "p", "NAME", USED, ONCE, "Image: the job's partition"),
    ("pool", "", "NAME", USED, ONCE, "Image: run in this pool of yours"),
    ("read-only", "", None, USED, ONCE, "Image: make its files read-only"),
    ("save", "", "FILE", USED, ONCE, "Image: write its files to FILE at the end"),
    ("time", "t", "TIME", USED, ONCE, "Image: the job's time limit"),
    ("unshare", "", "KINDS", USED, ONCE, "Image: own namespaces: ipc, net, uts"),
    ("user", "u", "UID[:GID]", USED, ONCE, "Image: run it as this user, by number"),
    ("workdir", "w", "DIR", USED, ONCE, "Image: working directory in the container"),
    ("writable", "", None, USED, ONCE, "Image: keep what is written, as --name"),
)

# parsed although nothing uses them, so that the answer says why not
_CRIU: tuple[Option, ...] = (
    ("auto-dedup", "", None, IGNORED, ONCE, "Deduplicate memory images"),
    ("empty-ns", "", "KIND", IGNORED, MANY, "Leave a namespace out"),
    ("ext-unix-sk", "", None, IGNORED, ONCE, "Allow external sockets"),
    ("file-locks", "", None, IGNORED, ONCE, "Allow file locks"),
    ("image-path", "", "DIR", IGNORED, ONCE, "Where the images are"),
    ("lazy-pages", "", None, IGNORED, ONCE, "Copy memory later"),
    ("manage-cgroups-mode", "", "MODE", IGNORED, ONCE, "How to treat cgroups"),
    ("parent-path", "", "DIR", IGNORED, ONCE, "Where earlier images are"),
    ("shell-job", "", None, IGNORED, ONCE, "Allow shell jobs"),
    ("tcp-established", "", None, IGNORED, ONCE, "Allow open TCP connections"),
    ("tcp-skip-in-flight", "", None, IGNORED, ONCE, "Skip connections that are being made"),
    ("work-path", "", "DIR", IGNORED, ONCE, "Where logs go"),
)

COMMANDS: dict[str, Command] = {
    "create": (
        "Prepare a new container: allocate its job and stage it in",
        (CONTAINER,),
        _CREATE,
    ),
    "start": ("Start the program of a created container", (CONTAINER,), ()),
    "state": ("Print the state of a container as JSON", (CONTAINER,), ()),
    "kill": (
        "Send a signal, by name or number, to a container (default: TERM)",
        (CONTAINER, "[signal]"),
        (
            ("all", "a", None, IGNORED, ONCE, "Signal all processes"),
            ("regex", "r", None, USED, ONCE, "All containers whose whole id matches"),
        ),
    ),
    "delete": (
        "Stop containers that run, and release all their resources",
        (CONTAINER, MORE_CONTAINERS),
        (
            ("force", "f", None, USED, ONCE, "Succeed even if there is no such container"),
            ("regex", "r", None, USED, ONCE, "All containers whose whole id matches"),
        ),
    ),
    "run": (
        "Run a container of a bundle or an image, to its end",
        (CONTAINER,),
        (
            ("detach", "d", None, USED, ONCE, "Return as soon as it is started"),
            ("keep", "", None, USED, ONCE, "Keep its record when it has ended"),
            ("replace", "", None, USED, ONCE, "First delete a container that has its id"),
            *_CREATE,
            *OF_IMAGES,
        ),
    ),
    "exec": (
        "Run one more program in a running container",
        (CONTAINER, "[command...]"),
        (
            ("additional-gids", "g", "GID", USED, MANY, "Another group for the program"),
            ("apparmor", "", "PROFILE", IGNORED, ONCE, "AppArmor profile"),
            ("cap", "c", "CAPABILITY", USED, MANY, "Another capability for the program"),
            ("cgroup", "", "PATH", IGNORED, MANY, "Which of the container's cgroups"),
            _CONSOLE,
            ("cwd", "", "DIR", USED, ONCE, "Working directory in the container"),
            ("detach", "d", None, USED, ONCE, "Return as soon as it is started"),
            ("env", "e", "NAME=VALUE", USED, MANY, "Set a variable"),
            ("ignore-paused", "", None, IGNORED, ONCE, "Even in a paused container"),
            ("no-new-privs", "", None, USED, ONCE, "The program cannot gain privileges"),
            _PID_FILE,
            _PIDFD,
            _PRESERVE,
            ("process", "p", "FILE", USED, ONCE, "JSON file like `process` in config.json"),
            ("process-label", "", "LABEL", IGNORED, ONCE, "SELinux label"),
            ("tty", "t", None, USED, ONCE, "Give the program a terminal"),
            ("user", "u", "UID[:GID]", USED, ONCE, "Run it as this user, by number"),
        ),
    ),
    "shell": (
        "Open a shell in a running container, the best one found there",
        (CONTAINER, "[shell...]"),
        (
            ("cwd", "", "DIR", USED, ONCE, "Working directory in the container"),
            ("env", "e", "NAME=VALUE", USED, MANY, "Set a variable"),
            ("user", "u", "UID[:GID]", USED, ONCE, "Run it as this user, by number"),
        ),
    ),
    "attach": (
        "Connect this terminal to a container that was started detached",
        (CONTAINER,),
        (("no-stdin", "", None, USED, ONCE, "Only show the output"),),
    ),
    "cp": (
        "Copy files out of a running container, or into it",
        ("<source>", "<destination>"),
        (),
    ),
    "forward": (
        "Reach ports of a container at ports of this machine",
        (CONTAINER, "[port]..."),
        (
            ("detach", "d", None, USED, ONCE, "Go on in the background until the container ends"),
            ("print-url", "", None, USED, ONCE, "Print a URL for each port, and nothing else"),
        ),
    ),
    "logs": (
        "Print the output of a container that was started detached",
        (PERHAPS_CONTAINER,),
        (
            ("follow", "f", None, USED, ONCE, "Go on until the container ends"),
            ("messages", "", None, USED, ONCE, "Instead, messages of Slurm and scrun about it"),
            ("since", "", "TIME", USED, ONCE, "Only output since a time, or since 10m ago"),
            ("supervisor", "", None, USED, ONCE, "Instead, the log of scrun's own faults"),
            ("tail", "n", "LINES", USED, ONCE, "Only the last lines"),
            ("timestamps", "t", None, USED, ONCE, "Write before each line when it was written"),
            ("until", "", "TIME", USED, ONCE, "Only output until a time, or until 10m ago"),
        ),
    ),
    "list": (
        "List the containers under the root directory",
        (),
        (
            ("format", "f", "table|json", USED, ONCE, "How to print them (default: table)"),
            ("jobs", "j", None, USED, ONCE, "Instead, jobs that wait for their next container"),
            ("quiet", "q", None, USED, ONCE, "Only their ids"),
            ("wide", "w", None, USED, ONCE, "All columns, whatever the terminal's width"),
        ),
    ),
    "release": (
        "Release the jobs that wait for their next container, or one",
        ("[job]",),
        (),
    ),
    "pool": (
        "Hold jobs for many containers: start, list, stop or resize a pool",
        ("<start|list|stop|resize>", "[pool]"),
        (
            ("account", "A", "NAME", USED, ONCE, "Start: the account of its jobs"),
            ("constraint", "C", "LIST", USED, ONCE, "Start: features of its nodes"),
            ("cpus-per-task", "c", "N", USED, ONCE, "Start: processors of each node"),
            ("exclusive", "", None, USED, ONCE, "Start: whole nodes"),
            ("format", "f", "table|json", USED, ONCE, "List: how to print (default: table)"),
            ("gres", "", "LIST", USED, ONCE, "Start: generic resources of each node"),
            ("mem", "", "SIZE", USED, ONCE, "Start: memory of each node"),
            ("nodes", "N", "N", USED, ONCE, "Start, resize: how many (default: 1)"),
            ("partition", "p", "NAME", USED, ONCE, "Start: the partition of its jobs"),
            ("qos", "q", "NAME", USED, ONCE, "Start: the QOS of its jobs"),
            ("reservation", "", "NAME", USED, ONCE, "Start: the reservation of its jobs"),
            ("time", "t", "TIME", USED, ONCE, "Start: the time limit of its jobs"),
        ),
    ),
    "map": (
        "Run a container for each line of a file, some at once",
        ("<file>",),
        (
            ("image", "", "IMAGE", USED, ONCE, "The image of lines that are only arguments"),
            ("jobs", "j", "N", USED, ONCE, "How many at once (default: one per processor)"),
            ("output", "o", "DIR", USED, ONCE, "Their output (default: map-NAME.out)"),
            ("pool", "", "NAME", USED, ONCE, "Run them in this pool of yours"),
            ("resume", "", None, USED, ONCE, "Go on: leave out what has ended with 0"),
            ("retry", "", "N", USED, ONCE, "Run what fails N times more (default: 0)"),
        ),
    ),
    "supervisor": (
        "List the supervisors, stop them, or have successors take over",
        ("<list|stop|restart>", "[supervisor]..."),
        (
            ("all", "a", None, USED, ONCE, "Stop all of them"),
            ("force", "", None, USED, ONCE, "Restart: end what no successor can take over"),
            ("format", "f", "table|json", USED, ONCE, "How to list them (default: table)"),
            ("time", "t", "TIME", USED, ONCE, "Stop: end everything at once after this time"),
        ),
    ),
    "ps": (
        "List the processes in a container",
        (CONTAINER, "[ps-option...]"),
        (("format", "f", "table|json", USED, ONCE, "How to print them (default: table)"),),
    ),
    "pause": ("Suspend all processes of a container", (CONTAINER,), ()),
    "resume": ("Resume the processes of a paused container", (CONTAINER,), ()),
    "events": (
        "Print the resource usage of a container, as JSON, at intervals",
        (CONTAINER,),
        (
            ("interval", "", "TIME", USED, ONCE, "How often, as 5, 5s or 100ms (default: 5s)"),
            ("stats", "", None, USED, ONCE, "Only once"),
        ),
    ),
    "stats": (
        "Print what running containers use: processors, memory, threads",
        (PERHAPS_CONTAINER, MORE_CONTAINERS),
        (
            ("format", "f", "table|json", USED, ONCE, "How to print it (default: table)"),
            ("interval", "", "TIME", USED, ONCE, "Between two looks, as 5 or 100ms (default: 1s)"),
            ("watch", "w", None, USED, ONCE, "Go on until they have ended"),
        ),
    ),
    "top": (
        "Show live what containers, pods and pools use and wait for",
        (),
        (
            ("filter", "", "TEXT", USED, ONCE, "Only containers with this in a name or column"),
            ("format", "f", "table|json", USED, ONCE, "Print once, as a table or as JSON"),
            ("interval", "", "TIME", USED, ONCE, "Between two looks (default: 2s, once: 1s)"),
            ("once", "", None, USED, ONCE, "Print a table instead of a screen"),
            ("sort", "", "cpu|memory|name|age|status", USED, ONCE, "Sort by (default: cpu)"),
        ),
    ),
    "report": (
        "Print what containers used of what they had, and their waiting",
        (),
        (
            ("audit", "", "FILE", USED, ONCE, "Also those in this file of the site's audit"),
            ("by", "", "container|image|pod|day", USED, ONCE, "Add up (default: container)"),
            ("format", "f", "table|json|html", USED, ONCE, "How to print it (default: table)"),
            ("since", "", "TIME", USED, ONCE, "Only those created since a time, or since 24h ago"),
        ),
    ),
    "metrics": (
        "Print or serve metrics for Prometheus: containers, waiting, starts",
        (),
        (("listen", "", "ADDRESS", USED, ONCE, "Serve them: unix:PATH or 127.0.0.1:PORT"),),
    ),
    "update": (
        "Change the limits of a running container, as far as its job allows",
        (CONTAINER,),
        (
            ("blkio-weight", "", "N", USED, ONCE, "Share of block I/O"),
            ("cpu-burst", "", "USEC", USED, ONCE, "CPU time that may be saved up"),
            ("cpu-idle", "", "N", USED, ONCE, "Run only when nothing else does"),
            ("cpu-period", "", "USEC", USED, ONCE, "Period of the limit of CPU time"),
            ("cpu-quota", "", "USEC", USED, ONCE, "CPU time in each period"),
            ("cpu-rt-period", "", "USEC", USED, ONCE, "Period for real-time tasks"),
            ("cpu-rt-runtime", "", "USEC", USED, ONCE, "CPU time for real-time tasks"),
            ("cpu-share", "", "N", USED, ONCE, "Share of CPU time"),
            ("cpuset-cpus", "", "LIST", USED, ONCE, "Which processors"),
            ("cpuset-mems", "", "LIST", USED, ONCE, "Which memory nodes"),
            ("kernel-memory", "", "BYTES", USED, ONCE, "Limit of kernel memory"),
            ("kernel-memory-tcp", "", "BYTES", USED, ONCE, "Limit of network buffers"),
            ("l3-cache-schema", "", "TEXT", USED, ONCE, "Share of the cache"),
            ("mem-bw-schema", "", "TEXT", USED, ONCE, "Share of memory bandwidth"),
            ("memory", "", "BYTES", USED, ONCE, "Limit of memory"),
            ("memory-reservation", "", "BYTES", USED, ONCE, "Soft limit of memory"),
            ("memory-swap", "", "BYTES", USED, ONCE, "Limit of memory and swap"),
            ("pids-limit", "", "N", USED, ONCE, "Limit of processes"),
            ("resources", "r", "FILE", USED, ONCE, "Read the limits from a JSON file; -: stdin"),
            ("time-limit", "", "TIME", USED, ONCE, "The job's time limit, as salloc --time"),
        ),
    ),
    "features": ("Print what scrun supports, as JSON", (), ()),
    "spec": (
        "Write a config.json to start from",
        (),
        (
            ("bundle", "b", "DIR", USED, ONCE, "Where to (default: the working directory)"),
            ("file", "f", "FILE", USED, ONCE, "Name of the file (default: config.json)"),
            ("rootless", "", None, USED, ONCE, "For a user without privileges"),
        ),
    ),
    "bundle": (
        "Make a bundle from an image on disk (DIR or DIR:TAG)",
        ("<image>", "<bundle>"),
        (("tty", "t", None, USED, ONCE, "Give its program a terminal"),),
    ),
    "image": (
        "List, get or remove the images of the store",
        ("<list|pull|import|remove|prune>", "[image]..."),
        (
            ("format", "f", "table|json", USED, ONCE, "How to list them (default: table)"),
            ("quiet", "q", None, USED, ONCE, "Only the keys of those listed or removed"),
            ("unused-for", "", "TIME", USED, ONCE, "Remove those that are unused since then"),
        ),
    ),
    "checkpoint": (
        "Not possible: say why",
        (CONTAINER,),
        (
            *_CRIU,
            ("leave-running", "", None, IGNORED, ONCE, "Leave the container running"),
            ("link-remap", "", None, IGNORED, ONCE, "Link open files that were removed again"),
            ("page-server", "", "ADDRESS:PORT", IGNORED, ONCE, "Send the memory there"),
            ("pre-dump", "", None, IGNORED, ONCE, "Memory only"),
            ("status-fd", "", "FD", IGNORED, ONCE, "Signal when lazy pages are ready"),
        ),
    ),
    "restore": (
        "Not possible: say why",
        (CONTAINER,),
        (
            *_CRIU,
            ("detach", "d", None, IGNORED, ONCE, "Return as soon as it runs"),
            ("lsm-mount-context", "", "CONTEXT", IGNORED, ONCE, "For mounts"),
            ("lsm-profile", "", "PROFILE", IGNORED, ONCE, "For the processes"),
            *_CREATE,
        ),
    ),
    "install": (
        "Make podman or docker use scrun, or serve Docker's API by podman",
        ("<podman|docker|docker-api>",),
        (
            ("default", "", None, USED, ONCE, "Make scrun the engine's default runtime"),
            ("dry-run", "n", None, USED, ONCE, "Only show what would be written"),
            ("system", "", None, USED, ONCE, "For all users instead of this one"),
            ("undo", "", None, USED, ONCE, "Undo it"),
        ),
    ),
    "outside": (
        "Run rootless docker's daemon so that its containers can be jobs",
        ("<command>", "[argument...]"),
        (),
    ),
    "doctor": (
        "Check whether containers can run here, and say what to do",
        (),
        (
            ("format", "f", "text|json", USED, ONCE, "Format of the report (default: text)"),
            ("no-job", "", None, USED, ONCE, "Do not run a test job"),
        ),
    ),
    "completion": (
        "Print the script for command-line completion in a shell",
        ("<bash|zsh|fish>",),
        (),
    ),
    "lua": (
        "Check a scrun.lua, or run it on a bundle; needs no cluster",
        ("<check|run>", "<file>"),
        (
            ("bundle", "b", "DIR", USED, ONCE, "Bundle to run it on (default: here)"),
            ("config", "f", "FILE", USED, ONCE, "Instead of the bundle's config.json"),
            ("stage-out", "", None, USED, ONCE, "Run slurm_scrun_stage_out as well"),
        ),
    ),
    "oci-conf": (
        "Check an oci.conf, or show its commands filled in",
        ("<check|render>", "<file>", "[argument]..."),
        (
            ("bundle", "b", "DIR", USED, ONCE, "Bundle (default: the working directory)"),
            ("chdir", "", "DIR", USED, ONCE, "The job's working directory (default: here)"),
            ("job", "", "N", USED, ONCE, "The job's number (default: 1)"),
            ("node", "", "NAME", USED, ONCE, "The node's name (default: this machine's)"),
            ("pid", "", "N", USED, ONCE, "The task's pid (default: that of no process)"),
            ("spool", "", "DIR", USED, ONCE, "SlurmdSpoolDir (default: /var/spool/slurmd)"),
            ("step", "", "N", USED, ONCE, "The step's number (default: 0)"),
            ("task", "", "N", USED, ONCE, "The task's number (default: 0)"),
            ("uid", "", "N", USED, ONCE, "The user's number (default: yours)"),
            ("user", "", "NAME", USED, ONCE, "The user's name (default: that number's)"),
        ),
    ),
    "plugins": (
        "List the engines and stagers that are installed",
        (),
        (("format", "f", "table|json", USED, ONCE, "How to print them (default: table)"),),
    ),
    "shims": (
        "Print the directory of srun and sbatch that take pyxis' options",
        ("<pyxis>", "[argument...]"),
        (),
    ),
    "version": ("Show the version", (), ()),
    "help": ("Show help, for all or for one command", ("[command]",), ()),
}


IMAGES = "<image> [command...]"
"""The operands of `run` when the first one is an image."""


def is_image(command: str | None, operand: str) -> bool:
    """Tell whether an operand is an image: no container's id has a colon or a slash."""
    return command == "run" and (
        ":" in operand or "/" in operand or operand.endswith((".sqsh", ".sqfs"))
    )


def options_of(command: str | None) -> tuple[Option, ...]:
    """Return the options that may follow a command; the global options for None."""
    return GLOBAL if command is None else COMMANDS[command][2] + ASKED
