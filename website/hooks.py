"""What MkDocs does besides: the pages of the site are those of the repository, at their places in it.

A guide stays where it is and links as it does on any page that shows the repository: to other guides, to notebooks, to
results, and to sources, each of which has a page here. What is generated (the reference, the notebooks' pages, the
results) is made while the site is built, and kept nowhere.
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from website import notebook, reference, result

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"(?<=\]\()(?P<target>[^)#:\s]+)(?P<anchor>#[^)\s]*)?(?=\))")
LANGUAGES = {".py": "python", ".sh": "bash", ".json": "json", ".toml": "toml", ".yml": "yaml", ".yaml": "yaml"}


def on_config(config: Any) -> Any:
    """Name the chapters of the book in the navigation."""
    config.nav = notebook.with_chapters(config.nav)
    return config


def on_files(files: Files, config: Any) -> Files:
    """Replace what MkDocs finds in docs/ by the pages of the repository."""
    for file in [file for file in files if file.src_dir == config.docs_dir]:
        files.remove(file)
    whole = (*sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("docs/images/*.png")))
    for path in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "notebooks/book/README.md", *whole):
        files.append(_kept(Path(ROOT, path).relative_to(ROOT).as_posix(), ROOT, config))
    files.append(_kept("style.css", ROOT / "website", config))
    made = {f"reference/{room}.md": reference.page(room) for room in reference.rooms()}
    made |= {"reference/index.md": reference.index(), "benchmarks/results.md": result.page(ROOT / "benchmarks/results")}
    made |= {name: notebook.page(path) for name, path in notebook.pages().items()}
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    pages = {file.src_uri: file.content_string for file in files if file.src_uri.endswith(".md")}
    for source in sorted({source for name, text in pages.items() for source in _sources(name, text)}):
        files.append(File.generated(config, f"{source}.md", content=_source(source)))
    return files


def on_page_markdown(markdown: str, *, page: Any, files: Files, **_: Any) -> str:
    """Let links to sources, notebooks and results lead to their pages."""

    def leads(link: re.Match) -> str:
        target, anchor = _target(page.file.src_uri, link["target"])
        return link[0] if target is None else posixpath.relpath(target, posixpath.dirname(page.file.src_uri)) + anchor

    if page.meta.get("source"):
        return markdown
    if "\n## " not in markdown:
        page.meta.setdefault("hide", ["toc"])  # a wide table has its room
    return LINK.sub(leads, markdown)


def on_page_content(html: str, *, page: Any, **_: Any) -> str:
    """Link the names in the text to where the reference has them."""
    return html if page.meta.get("source") else reference.linked(html)


def _kept(path: str, folder: Path, config: Any) -> File:
    return File(path, str(folder), config.site_dir, config.use_directory_urls)


def _sources(name: str, text: str) -> Iterator[str]:
    for link in LINK.finditer(text):
        target, _ = _target(name, link["target"])
        if target is not None and not (target.endswith("results.md") or _is_notebook(target)):
            yield target.removesuffix(".md")


def _target(page: str, link: str) -> tuple[str | None, str]:
    """Say which page a link to a file of the repository leads to, and where on it; None for a page or an image."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), link))
    if path == "benchmarks/results":
        return "benchmarks/results.md", ""
    if path.endswith((".md", ".png")) or not (ROOT / path).is_file():
        return None, ""
    if path.endswith(".ipynb"):
        return path.removesuffix(".ipynb") + ".md", ""
    if path.startswith("benchmarks/results/"):
        return "benchmarks/results.md", f"#{Path(path).stem}"
    return f"{path}.md", ""


def _is_notebook(target: str) -> bool:
    return target.startswith("notebooks/") and not target.endswith(".py.md")


def _source(path: str) -> str:
    code = notebook.fenced((ROOT / path).read_text().rstrip(), LANGUAGES.get(Path(path).suffix, "text"))
    return f"---\nsource: true\nsearch:\n  exclude: true\nhide: [navigation, toc]\n---\n\n# {path}\n\n{code}\n"
