"""What the README shows is so."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
from flax import nnx

from flax_transformer import hub
from flax_transformer.data.text import train_byte_bpe
from flax_transformer.hub.processor.tokenizer import HubTokenizer
from flax_transformer.models.causal import Causal
from flax_transformer.models.text.gpt2 import gpt2_tiny

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
CODE = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_code_runs_as_shown():
    names: dict = {}
    exec(CODE[0], names)
    assert names["y"].shape == names["x"].shape
    assert names["ensemble"].shape == (6, *names["x"].shape)
    assert jax.tree.structure(names["grads"]) == jax.tree.structure(names["block"])
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(names["grads"]))


def test_the_code_on_checkpoints_runs_on_a_small_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tokenizer = HubTokenizer.of(train_byte_bpe(["Attention is all you need"], vocab_size=270))
    model = Causal(gpt2_tiny(vocab=tokenizer.vocab_size), rngs=nnx.Rngs(0))
    hub.save(hub.wrap(model, "GPT2LMHeadModel", tokenizer=tokenizer, eos_token_id=2, pad_token_id=0), "small")
    (id,) = re.findall(r'hub.load\("(.*?)"\)', CODE[1])
    names: dict = {}
    exec(CODE[1].replace(id, "small"), names)
    prompt = names["inputs"]["input_ids"].shape[1]
    assert names["logits"].shape == (1, prompt, tokenizer.vocab_size)
    assert prompt < names["tokens"].shape[1] <= prompt + 20
    assert (tmp_path / "folder" / "model.safetensors").is_file()


def test_links_lead_somewhere():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    links = [(page, link) for page in pages for link in re.findall(r"\]\(([^)#]+)\)", page.read_text())]
    assert links
    broken = [f"{page.name}: {link}" for page, link in links if "://" not in link and not (page.parent / link).exists()]
    assert broken == []
