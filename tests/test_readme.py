"""What the README shows is so."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_the_code_runs_as_shown():
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names: dict = {}
    exec(code, names)
    assert names["y"].shape == names["x"].shape
    assert names["ensemble"].shape == (6, *names["x"].shape)
    assert jax.tree.structure(names["grads"]) == jax.tree.structure(names["block"])
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(names["grads"]))


def test_links_lead_somewhere():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    links = [(page, link) for page in pages for link in re.findall(r"\]\(([^)#]+)\)", page.read_text())]
    assert links
    broken = [f"{page.name}: {link}" for page, link in links if "://" not in link and not (page.parent / link).exists()]
    assert broken == []
