"""Says which links of the built site lead nowhere, and what its pages would fetch from other hosts.

python -m website.link site
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

FETCHED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
CLICKED = {"canonical", "prev", "next", "edit"}
"""Kinds of <link> that fetch nothing."""


class Page(HTMLParser):
    """What a page has: places that links may lead to, links, and addresses that are fetched with it."""

    def __init__(self, text: str):
        super().__init__()
        self.places: set[str] = {"", "__top"}
        self.links: set[str] = set()
        self.fetched: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag has."""
        found = {name: value or "" for name, value in attrs}
        self.places |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.add(found["href"])
        if tag in FETCHED and found.get("rel") not in CLICKED and (address := found.get(FETCHED[tag])):
            self.fetched.add(address)


def faults(site: Path) -> list[str]:
    """List the links that lead nowhere, and what is fetched from elsewhere."""
    pages = {path: Page(path.read_text()) for path in sorted(site.rglob("*.html")) if path.name != "404.html"}
    found = []
    for path, page in pages.items():
        where = path.relative_to(site)
        found += [f"{where} fetches {address}" for address in page.fetched if urlsplit(address).netloc]
        for link in page.links | page.fetched:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path.resolve()
            target = target / "index.html" if target.is_dir() else target
            other = pages.get(target)
            if not target.exists() or (other is not None and unquote(parts.fragment) not in other.places):
                found.append(f"{where} links to {link}, which is not there")
    return found


if __name__ == "__main__":
    site = Path(sys.argv[1]).resolve()
    if said := faults(site):
        sys.exit("\n".join(said))
    print(f"{len(list(site.rglob('*.html')))} pages, no link leads nowhere: open {sys.argv[1]}/index.html")
