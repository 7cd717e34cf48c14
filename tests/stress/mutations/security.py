"""Deliberate faults of what keeps strangers, hostile images and lying nodes out. Pure."""

from collections.abc import Iterator

from tests.stress.mutations.mutation import Faults, Mutation

_UNIT = "tests/unit/"
_PARTS = "tests/component/"
_USED = "            if held := self.users(key):\n                return held\n            trash"
_SHIM, _NODES = "supervisor/shim/", "supervisor/nodes/"


def faults() -> Iterator[Mutation]:
    yield from _strangers()
    yield from _nodes()
    yield from _on_nodes()
    yield from _layers()
    yield from _files_of_images()
    yield from _audit()
    yield from _store()
    yield from _others_here()
    yield from _metrics()
    yield from _top()


def _top() -> Iterator[Mutation]:
    tests = "tests/unit/scrun/commands/test_top.py::test_"
    screen = Faults("scrun/commands/top_screen.py", tests + "hostile_names")
    yield screen(
        "top-shows-control-characters", "return tuple(map(printable, cells))", "return cells"
    )
    kill = tests + "kill_asks_first"
    yield screen("the-question-of-top-has-markup", "(text, markup=False)", "(text)", kill)
    yield screen(
        *("top-kills-another-one", "elif read_record(directory).created != line.stamp:"),
        *("elif False:", kill),
    )
    yield screen(
        *("the-cursor-of-top-stays-behind", "if name in names else self._at", "if False else 0"),
        tests + "the_screen",
    )
    asks = tests + "only_those_that_are_seen_are_asked"
    yield screen(
        "top-asks-what-nobody-sees", 'if self._away or self._kind == "pools":', "if False:", asks
    )
    yield screen("top-asks-all", "others=is_sorted", "others=True", asks)
    yield Faults("scrun/commands/top.py", tests + "one_that_does_not_answer_keeps_nobody_waiting")(
        "top-asks-again-before-it-is-answered", "if name not in self._waits:", "if True:"
    )
    yield Faults("scrun/commands/top_rows.py", tests + "what_has_ended_uses_nothing")(
        "what-has-ended-uses-memory", "NOTHING if is_over else", "NOTHING if False else"
    )
    far = Faults("scrun/core/progress.py", "tests/unit/scrun/core/test_progress.py")
    yield far("progress-never-waits", "and self._clock() >= self._next", "and self._next")
    yield far("a-bar-leaves-its-brackets", "max(0.0, min(share, 1.0))", "share")
    yield Faults("scrun/commands/list.py", "tests/unit/scrun/commands/test_listing.py")(
        "a-record-that-has-changed-is-not-read", " or found[0] != version", ""
    )


def _metrics() -> Iterator[Mutation]:
    page = Faults("scrun/commands/report.py", "tests/unit/scrun/commands/test_report.py")
    yield page("a-name-is-markup", "html.escape(printable(text))", "printable(text)")
    yield page("a-page-has-control-characters", "(printable(text))", "(text)")
    yield page("what-nobody-knows-has-a-bar", "if percent is not None:", "if True:")
    yield page("a-bar-leaves-its-frame", "min(percent or 0, 100)", "(percent or 0)")
    metrics = Faults("scrun/commands/metrics.py", "tests/unit/scrun/commands/test_metrics.py")
    yield metrics("metrics-are-for-the-whole-net", ".is_loopback and", ".packed and")
    yield metrics("everybody-may-read-the-socket-of-metrics", "os.umask(0o177)", "os.umask(0)")
    yield metrics("one-who-says-nothing-holds-up-a-scrape", "(ThreadingMixIn, ", "(")
    yield metrics("what-waits-has-made-up-its-reason", 'else "other"', "else text")
    yield metrics(
        *(
            "the-dashboard-knows-another-name",
            '"scrun_start_latency", "From',
            '"scrun_latency", "From',
        ),
        "tests/component/scrun/commands/test_prometheus.py::test_its_metrics_are_ours",
    )
    yield metrics(
        "a-server-that-runs-loses-its-socket", "except ConnectionRefusedError:", "finally:"
    )


def _strangers() -> Iterator[Mutation]:
    cache = _PARTS + "supervisor/shim/test_cache.py::"
    yield Faults(_SHIM + "door.py", cache + "test_who_has_heard_how_it_begins_gets_nothing")(
        "a-stranger-gets-the-image",
        'if not compare_digest(said, proof(self._secret, b"shim", visitor.both)):',
        "if False:",
    )
    yield Faults(_SHIM + "courier.py", cache + "test_more_than_was_announced")(
        "more-bytes-than-were-announced", "if len(data) > self._size - self._there:", "if False:"
    )
    yield Faults(_SHIM + "cache.py", cache + "test_a_bad_name_is_refused")(
        "an-image-of-any-path", 'if "/" in name or name.startswith("."):', "if False:"
    )
    yield Faults(_NODES + "dialing.py", _PARTS + "supervisor/nodes/test_dialing.py")(
        "a-second-connection-beside-the-first", "if not self._left:", "if False:"
    )
    yield Faults(
        "supervisor/engines/slurm/engine.py", _UNIT + "supervisor/engines/slurm/test_launch.py"
    )("a-port-where-slurm-encrypts", "found = Direct(not encrypted,", "found = Direct(True,")


def _nodes() -> Iterator[Mutation]:
    dialing = _PARTS + "supervisor/nodes/test_dialing.py"
    connection = Faults(_NODES + "connection.py", dialing)
    yield connection(
        "the-code-is-asked-for-again-and-again",
        "if self._hello.came or link is self._asked_over:",
        "if False:",
    )
    yield connection(
        "frames-in-the-wrong-place", "elif link is not self.table.link:", "elif False:"
    )
    yield connection(
        "any-protocol-is-spoken", "if hello.protocol != PROTOCOL:", "if False:",
        _PARTS + "supervisor/nodes/test_connection.py",
    )  # fmt: skip
    yield Faults(_SHIM + "streams.py", _UNIT + "supervisor/shim/test_shim_streams.py")(
        "input-beyond-the-window-is-kept",
        "if len(self._pending) + len(data) > WINDOW:",
        "if False:",
    )
    yield Faults(_NODES + "connection.py", _UNIT + "supervisor/nodes/test_creating.py")(
        "a-filter-of-a-node-that-lies",
        "return shim.place, hello.runtime",
        "return hello.node, hello.runtime",
    )
    yield Faults(
        "supervisor/engines/slurm/shim_site.py",
        _UNIT + "supervisor/engines/slurm/test_shim_site.py",
    )(
        "commands-of-a-node-that-lies",
        "known, conf = self._known.get(shim.place, (0, None))",
        "known, conf = next(iter(self._known.values()), (0, None))",
    )
    yield Faults(
        "supervisor/engines/slurm/shim_step.py",
        _PARTS + "supervisor/engines/slurm/test_shim_step.py",
    )("words-of-a-node-without-end", "if len(self._words) == _MOST_WORDS:", "if False:")
    yield Faults(_NODES + "counted.py", _PARTS + "supervisor/nodes/test_counted_source.py")(
        "the-end-of-input-is-not-noted", "self._words[_ENDED] = 1", "pass"
    )
    yield Faults(_NODES + "link.py", _PARTS + "supervisor/nodes/test_link.py")(
        "words-before-frames-without-end",
        "if at < 0 and len(self.before) > _MOST_BEFORE:",
        "if False:",
    )
    yield Faults("supervisor/keeper/main.py", _PARTS + "supervisor/keeper/test_keeper.py")(
        "successors-are-called-for-ever",
        "if time.clock_gettime(time.CLOCK_BOOTTIME) - began > seconds:",
        "if False:",
    )
    yield Faults(
        "supervisor/containers/adoption.py", _PARTS + "supervisor/containers/test_adoption.py"
    )("a-stopped-record-is-adopted", 'if record.status == "stopped":', "if False:")


def _on_nodes() -> Iterator[Mutation]:
    unit = _UNIT + "supervisor/shim/test_shim_files.py"
    files = Faults(_SHIM + "files.py", unit)
    yield files(
        "who-owns-a-private-directory-does-not-matter",
        "return private and status.st_uid == os.geteuid()",
        "return private",
    )
    yield files("a-private-directory-is-open", " and stat.S_IMODE(status.st_mode) == 0o700", "")
    yield files("others-may-write-on-a-node", "shared = status.st_mode & 0o022", "shared = False")
    yield files(
        "owners-on-a-node-do-not-matter",
        "if shared or not (status",
        "if shared or not (1 or status",
    )
    yield files(
        "directories-above-on-a-node-do-not-matter", "path = os.path.dirname(path)", 'path = "/"'
    )
    yield files(
        "the-shims-place-is-not-judged",
        "made = _make_in(own_only(folder))",
        "made = _make_in(folder)",
    )
    yield files("what-was-left-is-not-judged", "folder = own_only(given)", "folder = given")
    yield files(
        "others-may-enter-the-shims-directory",
        "os.mkdir(path, 0o700)\n        except FileExistsError:\n            continue",
        "os.mkdir(path, 0o755)\n        except FileExistsError:\n            continue",
    )
    yield files(
        "what-anybody-left-is-run",
        "is_a_shims = compare_digest(os.pread(lock, RANDOM + 1, 0), _mark(key, path))",
        "is_a_shims = True",
    )
    yield files(
        "what-is-removed-leads-elsewhere",
        "os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW",
        "os.O_RDONLY | os.O_DIRECTORY",
    )
    yield Faults(_SHIM + "processes.py", _UNIT + "supervisor/shim/test_processes.py")(
        "names-of-processes-end-lines",
        'status.rstrip().split(b"\\n")',
        "status.splitlines()",
    )
    yield Faults("supervisor/staging/survey.py", _UNIT + "supervisor/shim/test_processes.py")(
        "names-of-mount-points-end-lines", ', newline="\\n")', ")"
    )
    yield Faults(_SHIM + "cache.py", unit)(
        "the-place-of-images-is-not-judged",
        "os.path.join(own_only(folder),",
        "os.path.join(folder,",
    )
    yield Faults("supervisor/staging/on_node.py", unit)(
        "where-a-container-writes-is-not-judged", "! -perm -020 ! -perm -002", "-perm -000"
    )


def _layers() -> Iterator[Mutation]:
    hostile = _PARTS + "scrun/pull/test_hostile_layers.py"
    layers = _PARTS + "scrun/pull/test_layers.py"
    tree = Faults("scrun/pull/tree.py", hostile)
    yield tree(
        "a-name-leads-out",
        'raise ImageError(f"{os.fsdecode(name)!r} leads out of the image")',
        "found = [b'..']",
        layers,
    )
    yield tree(
        "what-is-there-is-written-to", "os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW",
        "os.O_WRONLY | os.O_CREAT", hostile, layers,
    )  # fmt: skip
    yield tree(
        "a-hard-link-leads-out",
        'there = open_inside(self._root, b"/".join(folder))',
        'there = os.open(b"/".join(folder) or b".", os.O_PATH, dir_fd=self._root)',
    )
    yield tree(
        "implied-directories-do-not-count", "        self._bounds.folder()\n        os.mkdir",
        "        os.mkdir", layers,
    )  # fmt: skip
    yield tree(
        "directories-of-volumes-do-not-count",
        "                self._bounds.folder()\n            try:",
        "            try:",
        layers,
    )
    yield tree(
        "an-image-has-notes-for-overlays",
        "        if not name.startswith(_LEFT_OUT):\n            with _unless_refused():\n"
        "                os.setxattr",
        "        if True:\n            with _unless_refused():\n                os.setxattr",
        layers,
    )
    yield Faults("scrun/core/trees.py", hostile)(
        "directories-of-layers-may-be-links", "os.O_DIRECTORY | os.O_NOFOLLOW", "os.O_DIRECTORY"
    )
    bounds = Faults("scrun/pull/layers.py", layers)
    yield bounds("any-number-of-bytes", "if self._left < 0 and self._size:", "if False:")
    yield bounds("any-number-of-files", "if self._entries_left < 0:", "if False:")
    yield bounds("any-bytes-of-names", "if self._names_left < 0:", "if False:")
    yield bounds("any-depth", "if depth > DEPTH:", "if False:")
    yield Faults("scrun/pull/layers.py", layers)(
        "another-layer-than-the-image-has", "if (digest := ahead.digest) != diff_id:",
        "if not (digest := ahead.digest):",
    )  # fmt: skip
    layout = Faults("scrun/pull/layout.py", layers)
    yield layout(
        "another-blob-than-its-name-says",
        'if sha.hexdigest() != digest.removeprefix("sha256:"):',
        "if False:",
    )
    yield layout("a-blob-of-any-size", "if size != wanted:", "if False:")
    yield layout(
        "a-digest-is-a-path", "_DIGEST.fullmatch(digest)", "_DIGEST.match(digest)", hostile
    )
    tar = Faults("scrun/pull/tar.py", layers)
    yield tar("headers-of-any-size", "if not 0 <= size <= _MOST_OF_HEADER:", "if False:")
    yield tar(
        "holes-beyond-what-is-stored",
        "if end > entry.size or total > stored",
        "if end > entry.size",
    )
    yield tar("any-number-of-holes", "if count > _MOST_PIECES:", "if False:")
    yield tar("any-letter-is-a-kind", "if entry.kind not in _KNOWN:", "if False:")


def _files_of_images() -> Iterator[Mutation]:
    inside = Faults("scrun/core/inside.py", _UNIT + "scrun/pull/test_users.py")
    yield inside(
        "links-lead-out-of-an-image",
        'go_back(way, 1 if target.startswith("/") else len(way) - 1)',
        'way[-1] = Step("", os.open("/" if target[:1] == "/" else ".", os.O_PATH))',
    )
    yield inside("a-file-of-any-size", "if len(content) > limit:", "if False:")
    yield Faults("scrun/core/paths.py", _UNIT + "scrun/pull/test_users.py")(
        "a-fifo-of-an-image-is-opened",
        "if not stat.S_ISREG(posix.fstat(found).st_mode):",
        "if False:",
    )
    squashfs = Faults("scrun/pull/squashfs.py", _PARTS + "scrun/pull/test_squashfs.py")
    yield squashfs(
        "links-in-etc-of-a-squashfs-are-followed",
        'return read_inside(root, f"etc/{name}".encode(), 1 << 20)',
        'return open(os.path.join(rootfs, "etc", name), "rb").read()',
    )
    yield squashfs("a-squashfs-of-any-number-of-files", "if count > ENTRIES:", "if False:")
    programs = Faults("scrun/pull/programs.py", _PARTS + "scrun/pull/test_layers.py")
    yield programs(
        "programs-of-pull-outlive-scrun", '"--pdeathsig", "KILL"', '"--pdeathsig", "CONT"'
    )
    yield programs(
        "programs-of-pull-hang-for-ever",
        "elif time.monotonic() - since >= PATIENCE:",
        "elif False:",
    )
    yield programs(
        "unsquashfs-writes-any-number-of-bytes",
        "if most and _count(_WRITTEN, moved) > most:",
        "if False:",
        _PARTS + "scrun/pull/test_squashfs.py",
    )
    yield Faults("scrun/pull/get.py", _PARTS + "scrun/pull/test_get.py")(
        "a-registry-may-have-another-digest",
        "if reference.digest and digest != reference.digest:",
        "if False:",
    )
    annotations = Faults(
        "supervisor/staging/policy.py",
        _UNIT + "supervisor/staging/test_staging_policy.py",
    )
    yield annotations("an-image-gives-krun-orders", '"krun.", ', "")
    yield annotations(
        "a-script-passes-orders-on",
        "if submitted is not None and submitted.get(name) != annotations[name]:",
        "if submitted is not None:",
        _PARTS + "supervisor/staging/test_scripted.py",
    )
    names = Faults("supervisor/containers/names.py", _UNIT + "supervisor/containers/test_names.py")
    yield names("an-image-writes-what-squeue-prints", '"_", text[: 2 * longest])', '"\\n", text)')
    yield names("docker-knows-every-image-by-one-digest", "of_image == image and ", "")
    yield names("dockers-local-images-have-no-id", "known.image) or known.image", "known.image)")
    yield names("another-container-of-dockers", "/containers/{container}/hostname", "/hostname")
    yield names("an-image-gives-salloc-an-option", 'plain.lstrip("-_.")', "plain")
    yield Faults("scrun/model/identity.py", _UNIT + "scrun/model/test_mark.py")(
        "a-job-with-a-name-is-nobodys",
        '"".join(text.split(maxsplit=1)[:1])',
        "text.strip()",
    )
    yield Faults("scrun/core/text.py", _UNIT + "scrun/cli/test_report.py")(
        "what-moves-the-cursor-is-shown",
        "def printable(text: str) -> str:\n",
        "def printable(text: str) -> str:\n    return text\n\n\ndef _nobody(text: str) -> str:\n",
    )


def _audit() -> Iterator[Mutation]:
    unit = _UNIT + "supervisor/containers/test_audit.py"
    audit = Faults("supervisor/containers/audit.py", unit)
    yield audit("an-end-is-written-again", '_has(known, record, "end")', "False")
    yield audit("the-audit-says-of-no-pod", '"pod": names.pod', '"pod": ""')
    yield audit("a-line-twice", "if os.write(fd, line) <", "if os.write(fd, 2 * line) <")
    yield audit(
        "a-link-is-followed-by-the-audit", "O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW", "O_APPEND"
    )
    real = "tests/integration/slurm/test_audit.py"
    yield Faults("supervisor/containers/orphans.py", real)(
        "nobody-writes-the-end-of-the-lost",
        "        await _write_end(directory)\n        await undo",
        "        await undo",
    )
    yield Faults("supervisor/containers/audit.py", real + "::test_a_daemon")(
        "nobody-finds-the-audit-in-the-journal", "={_IDENTIFIER}\\n", "=scrun\\n"
    )
    yield Faults(
        "scrun/settings/file/load.py", _UNIT + "scrun/settings/file/test_settings_sources.py"
    )("a-file-of-ones-own-leaves-out-the-audit", 'if kind == "named":  #', "if False:  #")


def _store() -> Iterator[Mutation]:
    store = Faults("scrun/images/store.py", _PARTS + "scrun/images/test_store.py")
    yield store(
        "an-image-is-removed-without-the-lock",
        f"with locked(self._lock(key)):\n{_USED}",
        f"with contextlib.nullcontext():\n{_USED}",
    )
    yield store("any-word-is-a-key", "if not _KEY.fullmatch(key):", "if False:")
    yield store("a-store-of-somebody-else", "if status.st_uid != os.geteuid():", "if False:")
    yield store(
        "a-store-that-others-write-to", "if reason := replaceable(path):", 'if reason := "":'
    )
    yield store("any-store-is-read", "if replaceable(directory):", "if False:")


def _others_here() -> Iterator[Mutation]:
    wire = Faults("scrun/protocol/wire.py", _UNIT + "scrun/protocol/test_wire.py")
    yield wire("30000-s-for-an-answer", "_ANSWER = 30\n", "_ANSWER = 30000\n")
    yield wire("an-answer-of-any-length", "if size > REPLY:", "if False:")
    yield Faults("supervisor/daemon/requests.py", _PARTS + "scrun/protocol/test_connecting.py")(
        "nobody-is-one-of-us",
        "if uid == _NOBODY:",
        "if False:",
    )
    own = Faults("scrun/core/own_directory.py", _PARTS + "scrun/core/test_own_directory.py")
    yield own(
        "a-root-directory-of-somebody-else", "if status.st_uid != os.geteuid():", "if False:"
    )
    yield own("a-root-directory-for-all", "if status.st_mode & 0o022:", "if False:")
    private = Faults("supervisor/core/files.py", _UNIT + "supervisor/core/test_private.py")
    yield private(
        "a-staged-bundle-in-a-place-of-somebody-elses",
        "not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid()",
        "False",
    )
    yield private("a-staged-bundle-beside-what-is-there", "if os.listdir(directory):", "if False:")
    yield Faults("scrun/client/anchored.py", _PARTS + "scrun/client/test_console.py")(
        "a-terminal-for-anybody", "if wire.peer_uid(sock) != 0:", "if False:"
    )
