"""Find links of Markdown pages that lead nowhere: `make docs` and tests/test_docs.py call it.

Relative links need a file, and a heading if they have an #anchor. Pages of docs/reference are made by Sphinx, which
checks the links to them; links to other sites are not followed.
"""

import os
import re
import sys
from pathlib import Path

FENCED = re.compile(r"^(`{3,})[^\n]*\n.*?^\1`*$", re.DOTALL | re.MULTILINE)
HIDDEN = re.compile(r"`[^`\n]*`|<!--.*?-->", re.DOTALL)
LINK = re.compile(r"\]\(<?([^\s)>]+)>?(?: \"[^\"]*\")?\)|^\[[^\]]+\]: +(\S+)", re.MULTILINE)
HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)
MADE = ("_build", "build", "dist", "runs")  # folders without sources


def pages(root):
    """Yield the Markdown pages below a folder; links to folders are not followed."""
    for folder, inner, names in os.walk(root):
        inner[:] = sorted(name for name in inner if name[0] != "." and name not in MADE)
        yield from (Path(folder, name) for name in sorted(names) if name.endswith(".md"))


def anchors(text):
    """Return the anchors of the headings of a page, as GitHub and MyST make them."""
    found, times = set(), {}
    for heading in HEADING.findall(FENCED.sub("", text)):
        title = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        times[slug] = times.get(slug, -1) + 1
        found.add(f"{slug}-{times[slug]}" if times[slug] else slug)
    return found


def broken_links(root):
    """Return (page, link) of each relative link below a folder without its file or heading."""
    made_by_sphinx = Path(root).resolve() / "docs" / "reference"
    texts = {page.resolve(): page.read_text("utf-8") for page in pages(root)}
    broken = []
    for page, text in texts.items():
        if made_by_sphinx in page.parents:
            continue
        for link in (match[1] or match[2] for match in LINK.finditer(HIDDEN.sub("", FENCED.sub("", text)))):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            if re.match(r"[a-z]+:", link) or made_by_sphinx in target.parents:
                continue
            if not target.exists() or (anchor and target in texts and anchor not in anchors(texts[target])):
                broken.append((page.relative_to(Path(root).resolve()).as_posix(), link))
    return broken


if __name__ == "__main__":
    broken = broken_links(Path(__file__).parent.parent)
    sys.exit("\n".join(f"{page}: {link} leads nowhere" for page, link in broken) or 0)
