"""What the README shows is so, and the commands of all pages can be given."""

import importlib.util
import re
import shlex
import sys
import tomllib
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from flax_transformer import hub
from flax_transformer.data.text import train_byte_bpe
from flax_transformer.hub.processor.tokenizer import HubTokenizer
from flax_transformer.models.causal import Causal
from flax_transformer.models.text.gpt2 import gpt2_tiny
from flax_transformer.task.experiment import launch

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
CODE = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands():
    """Return the commands of all pages, in words."""
    for page in PAGES:
        for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                if words:
                    yield words


def given(program, begin=""):
    """The options that pages give, by the command or the file that they are given to."""
    found: dict[str, set[str]] = {}
    for words in commands():
        place = words.index(program) + 1 if program in words else len(words)
        if place < len(words) and words[place].startswith(begin):
            what = "bench-attention" if words[place:][:2] == ["bench", "attention"] else words[place]
            own = words[place : words.index("--") if "--" in words else None]
            found.setdefault(what, set()).update(word.partition("=")[0] for word in own if word.startswith("--"))
    return found


OURS, EXPERIMENTS = given("flax-transformer"), given("python", "experiments/")


@pytest.mark.parametrize("command", OURS)
def test_a_command_of_ours_takes_the_options_shown(command, run):
    code, said, _ = run(command) if command.startswith("--") else run(command, "--help")
    assert code == 0
    assert [name for name in OURS[command] if not re.search(rf"{name}\b", said) and name != command] == []


@pytest.mark.rotates
@pytest.mark.parametrize("file", EXPERIMENTS)
def test_an_experiment_takes_the_options_shown(file, capsys, monkeypatch):
    spec = importlib.util.spec_from_file_location(Path(file).stem, ROOT / file)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    monkeypatch.setenv("COLUMNS", "200")
    several = getattr(module, "EXPERIMENTS", {})
    main = getattr(module, "main", lambda arguments: launch(several or module.EXPERIMENT, arguments))
    missing = EXPERIMENTS[file]
    for name in several or (None,):  # an option may be one experiment's alone
        with pytest.raises(SystemExit) as stop:
            main([*([name] if name else []), "--help"])
        said = capsys.readouterr().out
        assert stop.value.code == 0
        missing = [option for option in missing if not re.search(rf"{option}\b", said)]
        if not missing:
            break
    assert missing == []


def test_what_is_made_and_installed_is_there():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    made = {words[1] for words in commands() if words[0] == "make"}
    assert {"demo", "test"} <= made <= targets
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = set(re.findall(r"['\"]\.\[(\w+)\]['\"]", "".join(page.read_text() for page in PAGES)))
    assert {"gpu", "tpu"} <= named <= set(extras)


@pytest.mark.rotates
def test_the_code_runs_as_shown():
    names: dict = {}
    exec(CODE[0], names)
    assert names["y"].shape == names["x"].shape
    assert names["ensemble"].shape == (6, *names["x"].shape)
    assert jax.tree.structure(names["grads"]) == jax.tree.structure(names["block"])
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(names["grads"]))


@pytest.mark.rotates
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
    links = [(page, link) for page in PAGES for link in re.findall(r"\]\(([^)#]+)\)", page.read_text())]
    assert links
    broken = [f"{page.name}: {link}" for page, link in links if "://" not in link and not (page.parent / link).exists()]
    assert broken == []
