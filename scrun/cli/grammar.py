"""The grammar of the command line: one table for parser, help and completion.

It is all of scrun(1), and every option that runc (1.1 to 1.3) and crun (1.8 to 1.21)
have for the same operations, so that scrun can stand in their place. Where they
disagree the manual wins: ``-v`` is verbosity here, ``-V`` the version.

A new operation is one entry of ``COMMANDS``. The table is plain tuples because every
call of scrun reads it: building anything from it would cost more than looking it up.
"""

Option = tuple[str, str, str | None, bool, bool, str]
"""One option: its long name, its short names (one character each), its metavar, whether
it is used, whether it may be given many times, and one line of help.

The metavar is None for a flag. In brackets, the value is optional: ``--name=value``, or
``--name value`` where that value is one of those listed. Bars list the possible values.
"""

Command = tuple[str, tuple[str, ...], tuple[Option, ...]]
"""One command: one line of help, its operands, its options.

Operands are written as scrun(1) does: ``<needed>``, ``[optional]``. One that ends in
``...]`` takes all that is left, options of its own included, so with it the options end
at the first operand.
"""

USED, IGNORED = True, False
ONCE, MANY = False, True

CONTAINER = "<container-id>"

# in every place where options may stand, as argp has it for crun
ASKED: tuple[Option, ...] = (
    ("help", "h?", None, USED, ONCE, "Show this help and exit"),
    ("usage", "", None, USED, ONCE, "Show how to call scrun, in short, and exit"),
)

GLOBAL: tuple[Option, ...] = (
    ("cgroup-manager", "", "MANAGER", IGNORED, ONCE, "Who manages cgroups: the job's node does"),
    ("config-file", "", "FILE", USED, ONCE, "Read this scrun.toml instead of those found"),
    ("criu", "", "PATH", IGNORED, ONCE, "Program for checkpoints"),
    ("debug", "", None, USED, ONCE, "Log debug messages"),
    ("engine", "", "NAME", USED, ONCE, "Where to run: slurm, local, or a plugin's name"),
    ("log", "", "FILE", USED, ONCE, "Append errors to FILE, as well as to stderr"),
    ("log-format", "", "text|json", USED, ONCE, "How to write to --log (default: text)"),
    ("log-level", "", "LEVEL", USED, ONCE, "What to log: error, warning, info, debug"),
    ("root", "", "DIR", USED, ONCE, "State and sockets (default: /run/user/UID/scrun)"),
    ("rootless", "", "[auto|true|false]", IGNORED, ONCE, "All of scrun is always rootless"),
    ("slurm-conf", "f", "PATH", USED, ONCE, "Use this slurm.conf"),
    ("systemd-cgroup", "", None, IGNORED, ONCE, "Use systemd for cgroups"),
    ("verbose", "v", None, USED, MANY, "Log more; again for yet more"),
    ("version", "V", None, USED, ONCE, "Show the version and exit"),
    *ASKED,
)

COMMANDS: dict[str, Command] = {
    "create": (
        "Prepare a new container: allocate its job and stage it in",
        (CONTAINER,),
        (
            ("bundle", "b", "DIR", USED, ONCE, "Bundle (default: the working directory)"),
            ("config", "f", "FILE", USED, ONCE, "Instead of the bundle's config.json"),
            ("console-socket", "", "SOCKET", USED, ONCE, "Send the terminal's master to SOCKET"),
            ("no-new-keyring", "", None, IGNORED, ONCE, "Keep the session keyring"),
            ("no-pivot", "", None, IGNORED, ONCE, "Do not use pivot_root"),
            ("no-subreaper", "", None, IGNORED, ONCE, "Do not reap orphans"),
            ("pid-file", "", "FILE", USED, ONCE, "Lock FILE and write the pid to it"),
            ("pidfd-socket", "", "SOCKET", IGNORED, ONCE, "Send a pidfd to SOCKET"),
            ("preserve-fds", "", "N", IGNORED, ONCE, "Pass N more file descriptors"),
        ),
    ),
    "start": ("Start the program of a created container", (CONTAINER,), ()),
    "state": ("Print the state of a container as JSON", (CONTAINER,), ()),
    "kill": (
        "Send a signal, by name or number, to a container (default: TERM)",
        (CONTAINER, "[signal]"),
        (
            ("all", "a", None, IGNORED, ONCE, "Signal all processes"),
            ("regex", "r", None, IGNORED, ONCE, "Take the id for a pattern"),
        ),
    ),
    "delete": (
        "Stop a container if it runs, and release all that it holds",
        (CONTAINER,),
        (
            ("force", "f", None, USED, ONCE, "Succeed if there is no such container, too"),
            ("regex", "r", None, IGNORED, ONCE, "Take the id for a pattern"),
        ),
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
    "version": ("Show the version", (), ()),
    "help": ("Show help, for all or for one command", ("[command]",), ()),
}


def options_of(command: str | None) -> tuple[Option, ...]:
    """Return the options that may follow a command; None stands for the global ones."""
    return GLOBAL if command is None else COMMANDS[command][2] + ASKED
