"""The directives of the manual pages: lists and tables made from scrun's own tables.

They are in the pages' sources, as `.. scrun-options:: create`. Where the code has names without a
text, the text stands in the directive's content, a field for each name; a name without a field,
and a field without a name, is an error. So a page can neither leave out what scrun has nor keep
what it had.

Most make a definition list; terms have ids, for links to them: `option-create-bundle`,
`variable-SCRUN_GRES`, `setting-log-level`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from docutils import nodes
from docutils.parsers.rst import Directive, directives, roles
from docutils.parsers.rst.directives.parts import Contents
from docutils.parsers.rst.states import Inliner
from docutils.statemachine import StringList
from facts import (
    attributes,
    keys,
    literal,
    names,
    outputs,
    releases,
    sections,
    settings_variables,
    tools,
    usages,
    values,
)

from scrun.cli.grammar import COMMANDS, options_of
from scrun.model import states
from scrun.settings.file import load
from scrun.settings.slurm import requests
from scrun.supervisor.worker import constants

PAGES = ("scrun.1", "scrun.lua.5", "scrun.toml.5")

Texts = Mapping[str, Sequence[nodes.Node]]

_MARKUP = re.compile(r"\*|\\ |^[|] ")
_WIDTH = 74  # of a synopsis


class Table(Directive):
    """What the directives have in common."""

    @property
    def for_web(self) -> bool:
        """Whether this becomes a web page, and not a page for man."""
        return bool(self.state.document.settings.scrun_for_web)

    def parse(self, text: str) -> list[nodes.Node]:
        """Read reStructuredText."""
        parent = nodes.Element()
        lines = StringList(text.splitlines(), source=f"<{self.name}>")
        self.state.nested_parse(lines, self.content_offset, parent)
        return parent.children

    def texts(self, known: Iterable[str], *, needed: bool = True) -> Texts:
        """Read the content, a list of fields, which are about these names.

        Args:
            known: What may have a field.
            needed: Whether everything needs one.
        """
        parent = nodes.Element()
        self.state.nested_parse(self.content, self.content_offset, parent)
        found = {field[0].astext(): field[1].children for field in parent.findall(nodes.field)}
        listed = list(known)
        if extra := [name for name in found if name not in listed]:
            raise self.error(f"{self.name}: scrun does not have {', '.join(extra)}")
        if missing := [name for name in listed if needed and name not in found]:
            raise self.error(f"{self.name}: no text about {', '.join(missing)}")
        return found

    def item(self, name: str, term: str, body: Sequence[nodes.Node]) -> nodes.Element:
        """Make an entry of a definition list.

        Args:
            name: Its id.
            term: reStructuredText.
            body: What is said about it.
        """
        content, _ = self.state.inline_text(term, self.lineno)
        title = nodes.term("", "", *content, ids=[name])
        return nodes.definition_list_item("", title, nodes.definition("", *body))


class Synopsis(Table):
    """How each command is called."""

    def run(self) -> list[nodes.Node]:
        lines = []
        for name in COMMANDS:
            for begin, operands in usages(name):
                text = f"| **scrun** [*GLOBAL OPTIONS*] {begin}"
                fits = len(_MARKUP.sub("", f"{text} {operands}")) < _WIDTH
                lines.append(f"{text} {operands}" if fits else f"{text}\n|     {operands}")
        return self.parse("\n".join(lines))


class Options(Table):
    """The global options; more about some of them in the content."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        more = self.texts((option[0] for option in options_of(None)), needed=False)
        return [self.option_list(None, more)]

    def option_list(self, command: str | None, more: Texts) -> nodes.Element:
        """Make the list of a command's own options, or of the global ones."""
        items = []
        for name, letters, metavar, used, many, text in (
            options_of(None) if command is None else COMMANDS[command][2]
        ):
            end = "." if used else ". Accepted and ignored."
            end += " May be given more than once." if many else ""
            body = [*self.parse(literal(text) + end), *more.get(name, [])]
            identifier = f"option-{command or 'global'}-{name}"
            items.append(self.item(identifier, names(name, letters, metavar), body))
        return nodes.definition_list("", *items)


class Commands(Options):
    """A section for each command, with its options; more about some of them in the content."""

    def run(self) -> list[nodes.Node]:
        more = self.texts(COMMANDS, needed=False)
        return [self._section(name, more.get(name, [])) for name in COMMANDS]

    def _section(self, name: str, more: Sequence[nodes.Node]) -> nodes.section:
        text, _, options = COMMANDS[name]
        section = nodes.section("", nodes.title(name, name), ids=[f"command-{name}"])
        forms = "\n".join(f"| **scrun** {begin} {operands}" for begin, operands in usages(name))
        section += self.parse(f"{forms}\n\n{literal(text)}.")
        section.extend(more)
        if options:
            section += self.option_list(name, {})
        return section


class IfCommand(Table):
    """Content that is shown if scrun has a command."""

    has_content = True
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        return self.parse("\n".join(self.content)) if self.arguments[0] in COMMANDS else []


class Requests(Table):
    """The variables that request properties of a job."""

    def run(self) -> list[nodes.Node]:
        if self.for_web:
            return [self._table()]
        items = []
        for variable, request in requests.TABLE.items():
            whose = f"{tools(request)} {releases(request)}".rstrip()
            image = "" if request.safe else "; not from an image"
            body = self.parse(f"`{request.option}` of {whose}{image}")
            items.append(self.item(f"variable-{variable}", f"**{variable}**", body))
        return [nodes.definition_list("", *items)]

    def _table(self) -> nodes.table:
        head = ("Variable", "Option", "Of", "Slurm", "From an image")
        rows = []
        for variable, request in requests.TABLE.items():
            image = "yes" if request.safe else "no"
            option = f"`{request.option}`"
            cells = (f"`{variable}`", option, tools(request), releases(request), image)
            rows.append(self._row(cells, [f"variable-{variable}"]))
        group = nodes.tgroup("", cols=len(head))
        group += [nodes.colspec(colwidth=1) for _ in head]
        group += [nodes.thead("", self._row(head, [])), nodes.tbody("", *rows)]
        return nodes.table("", group, classes=["colwidths-auto"])

    def _row(self, cells: Iterable[str], ids: list[str]) -> nodes.row:
        return nodes.row("", *(nodes.entry("", *self.parse(cell)) for cell in cells), ids=ids)


class Outputs(Table):
    """The variables that a script gets; more about some of them in the content."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        table = outputs()
        more = self.texts((name.replace("*", "") for name in table), needed=False)
        items = []
        for name, text in table.items():
            plain = name.replace("*", "")
            prefix = name.removesuffix("*KEY*")
            term = f"**{prefix}**" + (r"\ *KEY*" if prefix != name else "")
            body = [*self.parse(literal(text)), *more.get(plain, [])]
            items.append(self.item(f"variable-{prefix}", term, body))
        return [nodes.definition_list("", *items)]


class SettingsVariables(Table):
    """The variables that override scrun.toml."""

    def run(self) -> list[nodes.Node]:
        items = []
        for variable, key in settings_variables().items():
            body = self.parse(f"Counts more than {key} of :man:`scrun.toml(5)`.")
            items.append(self.item(f"setting-{variable}", f"**{variable}**", body))
        return [nodes.definition_list("", *items)]


class Settings(Table):
    """The keys of a table of scrun.toml, or those in none; more about some in the content."""

    has_content = True
    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        section = self.arguments[0] if self.arguments else ""
        described = attributes(sections()[section])
        fields = keys(section)
        more = self.texts(fields, needed=False)
        items = []
        for name, field in fields.items():
            about = self.parse(literal(described[name]))
            body = [*about, *more.get(name, []), *self.parse(values(field))]
            identifier = "-".join(filter(None, ("setting", section, name)))
            items.append(self.item(identifier, f"**{name}**", body))
        return [nodes.definition_list("", *items)]


class ExitStatuses(Table):
    """The exit statuses of containers that did not end by themselves; a field for each reason."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        texts = self.texts(states.TAKEN)
        items = [
            self.item(f"status-{status}", f"**{status}** `{reason}`", texts[reason])
            for reason, status in states.TAKEN.items()
        ]
        return [nodes.definition_list("", *items)]


class Levels(Table):
    """The levels of messages, a field for each."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        texts = self.texts(load.LEVELS)
        items = [
            self.item(f"level-{name}", f"**{name}** ({number})", texts[name])
            for number, name in enumerate(load.LEVELS)
        ]
        return [nodes.definition_list("", *items)]


class Constants(Table):
    """The constants of `slurm` in a script, a field for each."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        known = [*constants.USUAL, "CLUSTER_NAME"]
        texts = self.texts(known)
        items = [self.item(f"constant-{name}", f"**slurm.{name}**", texts[name]) for name in known]
        return [nodes.definition_list("", *items)]


class WebContents(Contents):
    """A table of contents, on web pages only."""

    def run(self) -> list[nodes.Node]:
        if not self.state.document.settings.scrun_for_web:
            return []
        return [*super().run()]


def _page(
    name: str,
    rawtext: str,
    text: str,
    lineno: int,
    inliner: Inliner,
    options: Mapping[str, object] | None = None,
    content: Sequence[str] = (),
) -> tuple[list[nodes.Node], list[nodes.system_message]]:
    """The role `man`: a manual page, `scrun.lua(5)`; a link where it is one of ours."""
    title, _, section = text.rstrip(")").partition("(")
    page = f"{title}.{section}"
    if inliner.document.settings.scrun_for_web and page in PAGES:
        return [nodes.reference(rawtext, text, refuri=f"{page}.html")], []
    return [nodes.strong(rawtext, text)], []


_DIRECTIVES: Mapping[str, type[Directive]] = {
    "scrun-synopsis": Synopsis,
    "scrun-options": Options,
    "scrun-commands": Commands,
    "scrun-if-command": IfCommand,
    "scrun-requests": Requests,
    "scrun-outputs": Outputs,
    "scrun-settings": Settings,
    "scrun-settings-variables": SettingsVariables,
    "scrun-exit-statuses": ExitStatuses,
    "scrun-levels": Levels,
    "scrun-constants": Constants,
    "web-contents": WebContents,
}


def register() -> None:
    """Make the directives, and the role, known to docutils."""
    for name, kind in _DIRECTIVES.items():
        directives.register_directive(name, kind)
    # types-docutils knows only roles that make references
    roles.register_local_role("man", _page)  # type: ignore[arg-type]
