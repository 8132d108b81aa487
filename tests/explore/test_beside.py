"""Two checkpoints beside each other: the same tokens, distances of what they say, pairs that do not go together."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_transformer import hub
from flax_transformer.data.text import train_byte_bpe
from flax_transformer.hub.fields import Fields
from flax_transformer.hub.processor.tokenizer import HubTokenizer
from flax_transformer.models.text.gpt2 import gpt2_tiny
from flax_transformer.nn import with_fields
from flax_transformer.task.explore.beside import check_tasks, check_tokens, jensen_shannon, put_beside
from flax_transformer.task.explore.explorer import Explorer
from flax_transformer.task.explore.page import all_views, write_page
from flax_transformer.task.explore.server import to_json
from tests.contract.golden import GOLDEN

pytestmark = pytest.mark.proves("explorer", "two checkpoints beside each other: distances, CKA, refusals")
REQUEST = {"input": {"text": "5 9 2 5 7 1 8"}}


def golden(name):
    return hub.load(next(folder for folder in GOLDEN if folder.name == name))


def wrapped(vocab=65, depth=1, seed=0):
    model = with_fields(gpt2_tiny(vocab), depth=depth).build(nnx.Rngs(seed))
    return hub.wrap(model, "GPT2LMHeadModel", bos_token_id=0, eos_token_id=1)


def moved_by(pretrained, amount):
    """Return the checkpoint with noise on its parameters."""
    leaves, tree = jax.tree.flatten(pretrained.model)
    keys = jax.random.split(jax.random.key(0), len(leaves))
    noisy = [x + amount * jax.random.normal(k, x.shape, x.dtype) for x, k in zip(leaves, keys, strict=True)]
    return replace(pretrained, model=jax.tree.unflatten(tree, noisy))


@pytest.fixture(scope="module")
def pair():
    """A checkpoint, and one of another width and depth that has the same vocabulary."""
    first = golden("gpt2")
    explorer = Explorer(first, "first")
    put_beside(explorer, Explorer(wrapped(first.vocabulary, depth=3), "other"))
    return explorer


@pytest.mark.rotates
def test_distances_are_those_of_the_answers(pair):
    from scipy.spatial.distance import jensenshannon

    found, tokens = pair.ask("beside", REQUEST), np.array([[5, 9, 2, 5, 7, 1, 8]])
    p, q = (
        np.asarray(jax.nn.softmax(each.program.pretrained(input_ids=tokens).logits[0]), np.float64)
        for each in (pair, pair.beside.other)
    )
    np.testing.assert_allclose(found["distance"], jensenshannon(p, q, axis=-1) ** 2, atol=1e-5)
    np.testing.assert_allclose(found["divergence"], (p * np.log(p / q)).sum(-1), atol=1e-5)
    assert found["agree"] == (p.argmax(-1) == q.argmax(-1)).tolist()
    best = [tops[0]["id"] for tops in found["look"]["answer"]["after"]["tops"]]
    assert best == q.argmax(-1).tolist()
    assert np.shape(found["cka"]) == (3, 4)
    assert pair.facts()["beside"] == "other"
    to_json(found)


@pytest.mark.rotates
def test_switches_are_of_the_first_alone(pair):
    plain, off = (pair.ask("beside", {**REQUEST, **more}) for more in ({}, {"off": {"heads": [[0, 1, 0]]}}))
    assert off["look"] == plain["look"]
    assert off["distance"] != plain["distance"]


@pytest.mark.rotates
def test_a_file_holds_both(pair, tmp_path):
    text = REQUEST["input"]["text"]
    assert {"beside", "beside_lens"} <= all_views(pair, text).keys()
    assert '"beside":"other"' in write_page(pair, tmp_path / "page.html", text).read_text()


@pytest.mark.slow
def test_a_checkpoint_beside_itself_is_no_distance_away():
    explorer = Explorer(golden("gpt2"))
    put_beside(explorer, Explorer(golden("gpt2"), "itself"))
    found = explorer.ask("beside", REQUEST)
    np.testing.assert_allclose(found["distance"], 0, atol=1e-6)
    assert all(found["agree"])
    np.testing.assert_allclose(np.diagonal(found["cka"]), 1, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["marian", "t5"])
def test_both_decoders_are_fed_what_the_first_has_written(name):
    explorer = Explorer(golden(name))
    put_beside(explorer, Explorer(moved_by(golden(name), 0.05), "noisy"))
    found = explorer.ask("beside", {"input": {"text": "5 9 2 5 1"}})
    assert found["look"]["target"] == explorer.ask("look", {"input": {"text": "5 9 2 5 1"}})["target"]
    assert len(found["distance"]) == len(found["look"]["target"])
    assert max(found["distance"]) > 0


@pytest.mark.slow
def test_images_are_compared_by_their_classes(tmp_path):
    explorer, with_arrays = Explorer(golden("vit")), tmp_path / "image.npz"
    put_beside(explorer, Explorer(moved_by(golden("vit"), 0.05), "noisy"))
    config = explorer.program.pretrained.config
    shape = (1, config["num_channels"], config["image_size"], config["image_size"])
    np.savez(with_arrays, pixel_values=np.random.default_rng(0).normal(size=shape).astype(np.float32))
    found = all_views(explorer, "", with_arrays)["beside"]
    assert len(found["distance"]) == 1
    assert found["distance"][0] > 0
    assert found["cka"] is not None


def test_divergence_of_two_distributions_is_symmetric_and_bounded():
    p, q = jax.nn.log_softmax(10 * jax.random.normal(jax.random.key(0), (2, 50, 9)))
    found = np.asarray(jensen_shannon(p, q))
    np.testing.assert_allclose(found, jensen_shannon(q, p), atol=1e-6)
    assert (found >= -1e-6).all()
    assert (found <= np.log(2) + 1e-6).all()


def test_tasks_that_do_not_go_together_are_refused():
    with pytest.raises(ValueError, match=r"must have a task in common, got a GPT2LMHeadModel .* and a ViT"):
        check_tasks(golden("gpt2"), golden("vit"))
    vit = golden("vit")
    with pytest.raises(ValueError, match="must tell the same classes"):
        check_tasks(vit, replace(vit, config=Fields.of({**vit.config, "id2label": {"0": "cat"}})))


@pytest.mark.rotates
def test_tokenizers_that_differ_are_refused():
    one, two = (
        HubTokenizer.of(train_byte_bpe([text] * 3, vocab_size=270)) for text in ("a small dog", "two cats sleep")
    )
    first, other = (replace(wrapped(300), tokenizer=tokenizer) for tokenizer in (one, two))
    check_tokens(first, replace(other, tokenizer=one))
    with pytest.raises(ValueError, match="must have one tokenizer, got two that differ"):
        check_tokens(first, other)
    with pytest.raises(ValueError, match="got two that differ, of 268 and none tokens"):
        check_tokens(first, replace(other, tokenizer=None))
    with pytest.raises(ValueError, match="must have one vocabulary, got 300 and 301 tokens"):
        check_tokens(first, replace(wrapped(301), tokenizer=one))


def test_a_text_that_is_other_tokens_to_the_other_is_refused(pair):
    other = pair.beside.other
    case = other.case({"input": {"text": "1 2 3"}})
    other.keep({"text": "5 9"}, case)
    with pytest.raises(ValueError, match="this text is 2 tokens to one and 3 to the other"):
        pair.ask("beside", {"input": {"text": "5 9"}})
    assert jnp.ndim(case.inputs["input_ids"]) == 2


def test_the_command_refuses_a_pair_in_one_sentence(run, tmp_path):
    folders = {folder.name: str(folder) for folder in GOLDEN if folder.name in ("gpt2", "bert")}
    page = tmp_path / "page.html"
    code, _, said = run(
        "explore", folders["gpt2"], "--beside", folders["bert"], "--input", "5 9", "--output", str(page)
    )
    assert code != 0
    assert "must have a task in common, got a GPT2LMHeadModel" in said
    assert "Traceback" not in said
    assert not page.exists()


@pytest.mark.slow
def test_the_command_writes_both(run, tmp_path):
    folder, page = str(next(folder for folder in GOLDEN if folder.name == "gpt2")), tmp_path / "page.html"
    code, _, _ = run("explore", folder, "--beside", folder, "--input", "5 9 2 5", "--output", str(page))
    assert code == 0
    assert '"beside":"gpt2"' in page.read_text()
