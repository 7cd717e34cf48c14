"""A search that finds sections: to Sphinx's index, each is a page `PAGE#SECTION` beside its page.

`static/sections.js` makes the results lead there.
"""

import html
from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from docutils import nodes
from docutils.utils import new_document
from sphinx.builders.html import StandaloneHTMLBuilder
from sphinx.search import IndexBuilder


class _Index(IndexBuilder):
    def prune(self, docnames: Iterable[str]) -> None:
        """Remove all pages but these, each with its sections."""
        kept = set(docnames)
        super().prune([name for name in self._titles if name.partition("#")[0] in kept])


class Builder(StandaloneHTMLBuilder):
    """Builds HTML as Sphinx does."""

    def prepare_writing(self, docnames: AbstractSet[str]) -> None:
        """Make an index that keeps sections."""
        super().prepare_writing(docnames)
        if self.indexer is not None:
            self.indexer.__class__ = _Index  # Sphinx leaves no choice of it

    def index_page(self, pagename: str, doctree: nodes.document, title: str) -> None:
        """Put a page and its sections into the index of the search."""
        super().index_page(pagename, doctree, title)
        if self.indexer is None or not title:
            return
        filename = self.env.doc2path(pagename, base=False)
        for section in doctree.findall(nodes.section):
            if isinstance(section.parent, nodes.document):
                continue  # the page
            alone = new_document("")
            alone += _without_sections(section)
            [heading] = (child.astext() for child in section if _is_title(child))
            name = f"{pagename}#{section['ids'][0]}"
            shown = f"{title} > {html.escape(heading, quote=False)}"
            self.indexer.feed(name, filename, shown, alone)


def _is_title(node: nodes.Node) -> bool:
    return isinstance(node, nodes.title)


def _without_sections(section: nodes.section) -> nodes.section:
    copy = section.deepcopy()
    copy.children = [child for child in copy.children if not isinstance(child, nodes.section)]
    return copy
