"""The site: the pages of all rooms as they are, and the reference from docstrings; `.ci/docs/build` builds it."""

import contextlib
import inspect
import io
import json
import os
import re
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import entry_points
from operator import attrgetter
from pathlib import Path, PurePosixPath
from typing import Any, get_type_hints

from docutils import nodes
from docutils.parsers.rst import Directive
from pygments.lexers import get_lexer_for_filename
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.ext.napoleon import GoogleDocstring
from sphinx.transforms import SphinxTransform
from sphinx.util import logging

import vecenv
from vecenv import curriculum
from vecenv.adapters.torchrl import GroupChatEnv
from vecenv.core.episode_rows import EpisodeRows
from vecenv.system.settings import Settings
from vecenv.tasks import backtest, experiment, walk_forward
from vecenv.tasks.commands import cli

PAGES = Path(__file__).parent
project = "vecenv"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinxcontrib.mermaid",
]
root_doc = "README"
source_suffix = {".rst": "restructuredtext", ".md": "markdown", ".ipynb": "markdown"}
html_theme = "furo"
html_title = f"vecenv {vecenv.__version__}"
html_copy_source = html_show_copyright = False

# Pages are written for GitHub.
myst_heading_anchors = 6
myst_fence_as_directive = ["mermaid"]

# Docstrings name objects in single backticks.
default_role = "py:obj"
autodoc_default_options = {"member-order": "bysource"}
autodoc_mock_imports = ["roll"]
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
add_module_names = False
# Annotations name classes as their modules know them, and two modules may have the same name.
suppress_warnings = ["ref.python"]
napoleon_numpy_docstring = False
# Attributes have their type beside them.
napoleon_use_ivar = True

# The docstring of an attribute is a text, and may have a colon: it is not "type: text".
GoogleDocstring._parse_attribute_docstring = GoogleDocstring._consume_to_end

REFERENCE = "".join(page.read_text() for page in (PAGES / "reference").glob("*.rst"))
for module in re.findall(r"automodule:: (\S+)", REFERENCE):
    # Before autodoc does, with the imports of type checkers, which pydantic does not take.
    with contextlib.suppress(ImportError):
        import_module(module)

# Names that are loaded when they are first asked for are members like others.
for room in (vecenv, curriculum, backtest, experiment, walk_forward):
    vars(room).update({name: getattr(room, name) for name in room.__all__})


def without_bounds(kind: type) -> None:
    """Let the fields of settings have plain types: their docstrings and errors tell the bounds."""
    hints = get_type_hints(kind)
    for owner in filter(None, (kind, vars(kind).get("__init__"))):
        owner.__annotations__ = {name: hints.get(name, hint) for name, hint in owner.__annotations__.items()}
    for each in kind.__subclasses__():
        without_bounds(each)


def help_of(command: str) -> str:
    """Return the help of a command, as it prints it."""
    with contextlib.redirect_stdout(io.StringIO()) as told:
        cli.main([command, "--help"])
    return told.getvalue()


os.environ |= {"COLUMNS": "110", "NO_COLOR": "1"}
HELP = {point.name: help_of(point.name) for point in (*cli.COMMANDS, *entry_points(group=cli.GROUP))}
# After the commands, whose options have the bounds.
for kind in Settings.__subclasses__():
    without_bounds(kind)

# TorchRL's metaclass takes any arguments.
for kind in (vecenv.VecEnv, EpisodeRows, GroupChatEnv):
    made = inspect.signature(kind.__init__)
    kind.__signature__ = made.replace(parameters=list(made.parameters.values())[1:])

CONTENTS = (PAGES / "contents.md").read_text()
SHOWN = (".py", ".cpp", ".hpp", ".yaml", ".json")
"""Files that have a page of their own where a page leads to them."""


class Commands(Directive):
    """The help of every command."""

    def run(self) -> list[nodes.Node]:
        """Return a section for each command."""
        sections: list[nodes.Node] = []
        for command, told in HELP.items():
            title = f"vecenv {command}"
            section = nodes.section("", nodes.title(text=title), ids=[nodes.make_id(title)], names=[title])
            section += nodes.literal_block(text=told, language="text")
            sections.append(section)
        return sections


class LinksToFiles(SphinxTransform):
    """Leads to the pages of files, which else are downloaded."""

    default_priority = 500

    def apply(self, **_: Any) -> None:  # noqa: ANN401
        """Replace the links of a page."""
        docname, builder = self.env.docname, self.app.builder
        files = self.env.metadata[docname].setdefault("files", [])
        for link in list(self.document.findall(addnodes.download_reference)):
            if link["reftarget"].endswith(SHOWN):
                file, _ = self.env.relfn2path(link["reftarget"], docname)
                files.append(file)
                uri = builder.get_relative_uri(docname, f"files/{file}")
                link.replace_self(nodes.reference("", "", *link.children, refuri=uri))


def pages_of_files(app: Sphinx) -> Iterator[tuple[str, dict[str, str], str]]:
    """Yield a page for each file that a page leads to."""
    for file in sorted({file for known in app.env.metadata.values() for file in known.get("files", ())}):
        text, lexer = (app.srcdir / file).read_text(), get_lexer_for_filename(file).aliases[0]
        shown = app.builder.highlighter.highlight_block(text, lexer)
        yield f"files/{file}", {"title": file, "body": f"<h1>{file}</h1>{shown}"}, "page.html"


def as_page(notebook: str) -> str:
    """Return a notebook as a page: its texts, code, and what that shows."""
    parts = []
    for cell in json.loads(notebook)["cells"]:
        source, shown = "".join(cell["source"]), ""
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {"text/plain": output.get("text")})
            if "image/png" in data:
                parts.append(f"![Output of the code above](data:image/png;base64,{''.join(data['image/png']).strip()})")
            else:
                # Without the colours of a terminal.
                shown += re.sub(r"\x1b\[[\d;]*m", "", "".join(data["text/plain"])).rstrip() + "\n"
        parts.append(f"```text\n{shown}```" if shown else "")
    return "\n\n".join(parts)


def page_above(docname: str, known: set[str]) -> str | None:
    """Return the page of the folder that a page is in, of the nearest that has one."""
    above = (f"{folder}/README" for folder in PurePosixPath(docname).parents)
    return next((page for page in above if page in known and page != docname), None)


def complete_page(app: Sphinx, docname: str, source: list[str]) -> None:
    """Make a page of a notebook, and add contents: to the first page all, to a folder's what is below it alone."""
    if docname == root_doc:
        source[0] += f"\n\n{CONTENTS}"
    if app.env.doc2path(docname).suffix == ".ipynb":
        source[0] = as_page(source[0])
    known = app.env.found_docs
    below = [page for page in sorted(known - set(CONTENTS.split())) if page_above(page, known) == docname]
    if below:
        source[0] += "\n\n".join(["", "```{toctree}\n:hidden:", "\n".join(f"/{page}" for page in below), "```"])


def names_used(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield module and name of what pages and recipes import, and of what `vecenv` offers."""
    yield from (("vecenv", name) for name in vecenv.__all__)
    for file in (*folder.rglob("*.md"), *folder.glob("tasks/recipes/*.py")):
        for module, names in re.findall(r"^from (vecenv[\w.]*) import (.*)$", file.read_text(), re.MULTILINE):
            yield from ((module, name.strip()) for name in names.split(","))


def check_reference(app: Sphinx, env: BuildEnvironment) -> None:
    """Warn of names that users import and that the reference lacks."""
    documented = env.domains.python_domain.objects
    for module, name in sorted(set(names_used(app.srcdir))):
        value = getattr(import_module(module), name)
        if not (inspect.isroutine(value) or inspect.isclass(value)):
            continue
        if f"{module}.{name}" not in documented and f"{value.__module__}.{name}" not in documented:
            logging.getLogger(__name__).warning("%s.%s is not in the reference", module, name)


def own_module(app: Sphinx, module: str, attribute: str) -> str:
    """Return where the code of an attribute is shown: in its module, unless that is another package's."""
    with contextlib.suppress(AttributeError):
        home = attrgetter(f"{attribute}.__module__")(import_module(module))
        return home if home.startswith("vecenv") else module
    # Of instances alone.
    return module


def shown_signature(*told: Any) -> tuple[str | None, str | None]:  # noqa: ANN401
    """Return a signature whose defaults are all Python, which Sphinx reads: functions and factories are left open."""
    *_, given, returned = told
    return given and re.sub(r"= ?<.*?>+(?=[,)])", "=...", given), returned


def link_to_class(app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, shown: nodes.Node) -> Any:  # noqa: ANN401
    """Return a link to the only class of a name, or to what it has, from docstrings of other modules."""
    domain, target = env.domains.python_domain, node["reftarget"]
    if node.get("refdomain") != "py" or not target[:1].isupper():
        return None
    found = domain.find_obj(env, None, None, target, None, 1)
    if len(found) != 1:
        return None
    return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", found[0][0], node, shown)


def setup(app: Sphinx) -> None:
    """Connect what the site has beside its extensions."""
    app.add_directive("commands", Commands)
    app.add_transform(LinksToFiles)
    app.connect("source-read", complete_page)
    app.connect("html-collect-pages", pages_of_files)
    app.connect("viewcode-follow-imported", own_module)
    app.connect("autodoc-process-signature", shown_signature)
    app.connect("missing-reference", link_to_class)
    app.connect("env-check-consistency", check_reference)
