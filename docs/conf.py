"""Sphinx settings of the site: `make docs` builds it, and a warning is an error."""

import re
import sys
from pathlib import Path

from sphinx.addnodes import pending_xref

sys.path.insert(0, str(Path(__file__).parent))
import generate_reference  # beside this file

from mgpu_ngram.core.version import VERSION

project = "mgpu_ngram"
version = release = VERSION
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"mgpu_ngram {VERSION}"
html_show_copyright = False
html_show_sphinx = False
myst_heading_anchors = 3
smartquotes = False
autodoc_member_order = "bysource"

TABLE_LINE = re.compile(r"(\S+(?:, \S+)*)  +(\S.*)")


ROOT = Path(__file__).resolve().parent.parent
# Pages outside docs, without suffix, and the pages of the site that include them.
INCLUDED = {
    page.with_suffix("").as_posix(): "reference/" + "-".join(page.with_suffix("").parts)
    for folder in ("benchmarks/papers", "benchmarks/results", "kernels", "mgpu_ngram")
    for page in (path.relative_to(ROOT) for path in sorted((ROOT / folder).rglob("*.md")))
} | {"kernels/README": "kernels", "CONTRIBUTING": "contributing", "CHANGELOG": "changelog"}
INCLUDE = """---
orphan: true
---

```{{include}} ../../{path}.md
:relative-docs: .
:relative-images:
```
"""


def link_included(app, doctree):
    """Let links to pages outside docs lead to the pages that include them."""
    pages = {str(ROOT / path): name for path, name in INCLUDED.items()}
    for link in doctree.findall(pending_xref):
        link["reftarget"] = pages.get(link["reftarget"], link["reftarget"])


def include_pages(folder):
    """Write a page for each page of INCLUDED that has none; no menu lists them."""
    for path, name in INCLUDED.items():
        if name.startswith("reference/"):
            (folder.parent / f"{name}.md").write_text(INCLUDE.format(path=path))


def docstring_to_rst(app, what, name, obj, options, lines):
    """Turn a docstring of this project, plain text, into reStructuredText in place.

    `code` becomes literal text, a table of arguments a definition list, an indented paragraph a literal block.
    """
    made, before = [], ""
    for line in lines:
        entry = TABLE_LINE.fullmatch(line)
        kind = "entry" if entry else "" if not line.strip() else "indented" if line[0] == " " else "text"
        if kind == "indented" and before in ("entry", "literal"):
            kind = before
        elif kind == "indented":
            kind = "literal"
            made += ["", "::", ""]
        elif kind != before:
            made.append("")
        if kind == "literal":
            made.append(line)
        else:
            made += [f"``{entry[1]}``", f"    {inline(entry[2])}"] if entry else [_indent(kind) + inline(line.strip())]
        before = kind
    lines[:] = [*made, ""]


def _indent(kind):
    return "    " if kind == "entry" else ""


def inline(text):
    """A line of reStructuredText that shows `text`, with its `code` as literals."""
    parts = re.split(r"`([^`]*)`", text)
    return "".join(f"``{part}``" if i % 2 else re.sub(r"([*|_\\])", r"\\\1", part) for i, part in enumerate(parts))


def setup(app):
    """Write the generated pages before Sphinx reads its sources."""
    reference = Path(__file__).parent / "reference"
    generate_reference.write(reference)
    include_pages(reference)
    app.connect("doctree-read", link_included)
    app.connect("autodoc-process-docstring", docstring_to_rst)
