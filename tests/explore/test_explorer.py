"""Every family opens in the explorer: a head is shown, an intervention changes the output; views say the truth."""

import base64
import io

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flax_transformer.inside import value_weighted_norms
from flax_transformer.ops import capture_all
from flax_transformer.report.explore import explore_page
from flax_transformer.task.explore.answer import likeliest
from flax_transformer.task.explore.case import case_of_arrays, make_case, repeated_tokens
from flax_transformer.task.explore.explorer import KEPT, Explorer
from flax_transformer.task.explore.page import all_views, write_page
from flax_transformer.task.explore.program import of_inputs
from flax_transformer.task.explore.server import to_json
from tests.contract.golden import GOLDEN, load
from tests.shares import only

pytestmark = pytest.mark.proves("explorer", "every family opens, a head is shown, an intervention changes the output")
WITHOUT = ("convnext", "timm_convnext", "mixer", "resnet", "upernet")
"""Families without attention."""


def opened(folder):
    pretrained, inputs, _ = load(folder)
    explorer = Explorer(pretrained, folder.name)
    asked = {"text": folder.name}
    explorer.keep(asked, case_of_arrays(pretrained, inputs))
    return explorer, {"input": asked}


def weights(kind):
    codes = np.frombuffer(base64.b64decode(kind["weights"]), "<u2").reshape(
        kind["layers"], kind["heads"], len(kind["rows"]), len(kind["columns"])
    )
    return codes / 65535


FAST = only(GOLDEN, *(folder for folder in GOLDEN if folder.name in ("gpt2",)))


def check_family(folder):
    explorer, request = opened(folder)
    seen = explorer.ask("look", request)
    page = explore_page(explorer.facts(), {"input": {"text": ""}, "look": seen}, served=True)
    assert folder.name in page
    if folder.name in WITHOUT:
        assert seen["kinds"] == []
        part = seen["sublayers"][0]
        off = {"sublayers": [[part["name"], part["place"], 0]]}
    else:
        for kind in seen["kinds"]:
            rows = weights(kind).sum(-1)
            np.testing.assert_allclose(rows[rows > 0], 1, atol=1e-2)
        first = seen["kinds"][0]
        assert first["switches"]
        off = {"heads": [[*first["origin"][0], 0]]}
    after = explorer.ask("look", {**request, "off": off})["answer"]["after"]
    assert max(after["moved"]) > 0
    to_json(seen)


@pytest.mark.rotates
@pytest.mark.parametrize("folder", FAST, ids=lambda folder: folder.name)
def test_a_family_opens(folder):
    check_family(folder)


@pytest.mark.slow
@pytest.mark.parametrize("folder", GOLDEN, ids=lambda folder: folder.name)
def test_every_family_opens(folder):
    check_family(folder)


@pytest.fixture(scope="module")
def gpt2():
    return opened(next(folder for folder in GOLDEN if folder.name == "gpt2"))


@pytest.mark.rotates
def test_what_is_shown_is_what_the_model_computes(gpt2):
    explorer, request = gpt2
    case = explorer.case(request)
    seen = explorer.ask("look", {**request, "measure": "norms"})
    program, given = explorer.program, explorer.program.given(case.inputs, padded=False)
    with jax.set_mesh(program.mesh):
        output, found = jax.jit(capture_all(of_inputs, lambda name: True))(program.pretrained, given)
    T = len(case.source)
    norms = value_weighted_norms(*(np.asarray(found[n][0]) for n in ("attention_weights", "value", "out_kernel")))
    (kind,) = seen["kinds"]
    np.testing.assert_allclose(kind["largest"] * weights(kind), norms[:, 0, :, :T, :T], atol=1e-3)
    probabilities = np.asarray(jax.nn.softmax(output.logits))[0]
    for row, tops in enumerate(seen["answer"]["after"]["tops"]):
        np.testing.assert_allclose(
            [one["p"] for one in tops], probabilities[row][[one["id"] for one in tops]], atol=1e-4
        )


def test_a_text_is_padded_to_a_bucket_and_says_the_same(gpt2):
    explorer, request = gpt2
    given = explorer.program.given(explorer.case(request).inputs)
    assert given.input_ids.shape == (1, 16)
    assert explorer.program.pads


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=30), st.integers(1, 40))
def test_the_likeliest_are_those_of_a_stable_sort(row, count):
    row = np.array(row, np.float32)
    assert likeliest(row, count).tolist() == np.argsort(-row, kind="stable")[:count].tolist()


@pytest.mark.rotates
def test_effects_are_those_of_switching_each_head_off(gpt2):
    explorer, request = gpt2
    row = 5
    effects = explorer.ask("effects", {**request, "row": row})["effects"]
    off = explorer.ask("look", {**request, "off": {"heads": [[0, 1, 1]]}})["answer"]["after"]["moved"]
    assert effects[0][1][1] == pytest.approx(off[row], abs=1e-4)


@pytest.mark.rotates
def test_views_agree_with_the_answer(gpt2):
    explorer, request = gpt2
    seen = explorer.ask("look", request)["answer"]
    lens = explorer.ask("lens", request)
    assert lens["names"][-1] == [tops[0]["name"] for tops in seen["after"]["tops"]]
    best = seen["after"]["tops"][-1][0]
    found = explorer.ask("attribute", {**request, "answer": best["id"]})
    assert abs(found["error"]) < 1e-3
    assert {len(values) for values in found["values"].values()} == {9}


def test_heads_are_named_by_repeated_tokens(gpt2):
    explorer, request = gpt2
    named = explorer.ask("heads", request)["heads"]
    assert all(len(each) == 5 and 0.3 <= each[4] <= 1 for each in named)
    with pytest.raises(ValueError, match="of models of texts alone, this one reads pixel_values"):
        repeated_tokens(load(next(folder for folder in GOLDEN if folder.name == "vit"))[0])


@pytest.mark.rotates
def test_patching_the_first_states_of_another_text_gives_its_answer(gpt2):
    explorer, request = gpt2
    case = explorer.case(request)
    other = make_case(explorer.program.pretrained, " ".join((*case.source[:-1], "3")))
    explorer.keep({"text": "other"}, other)
    both = {**request, "other": {"text": "other"}}
    traced = explorer.ask("trace", both)
    assert traced["p"][0][-1] == pytest.approx(traced["other"], abs=1e-3)  # they differ in the last token alone
    assert traced["p"][0][0] == pytest.approx(traced["own"], abs=1e-3)
    patched = explorer.ask("look", {**both, "off": {"patches": [[0, 0, 8]]}})
    assert patched["answer"]["after"]["tops"][-1][0]["name"] == traced["answer"]


def test_what_was_given_is_kept_however_much_is_asked(gpt2, monkeypatch):
    """A page asks for its first file by name alone."""
    monkeypatch.setattr("flax_transformer.task.explore.explorer.make_case", lambda *_: object())
    explorer, given, first = Explorer(gpt2[0].program.pretrained), object(), {"input": {"file": "page"}}
    explorer.keep(first["input"], given)
    made = [explorer.case({"input": {"text": str(i)}}) for i in range(KEPT + 1)]
    assert explorer.case(first) is given
    assert explorer.case({"input": {"text": str(KEPT)}}) is made[-1]
    assert explorer.case({"input": {"text": "0"}}) is not made[0]


@pytest.mark.rotates
def test_a_page_without_a_server_holds_every_view(gpt2, tmp_path):
    explorer, request = gpt2
    text = explorer.case(request).text
    assert {"input", "look", "lens", "effects", "attribute", "tree"} == all_views(explorer, text).keys()
    page = write_page(explorer, tmp_path / "page.html", text).read_text()
    assert "connect-src" not in page
    assert "://" not in page.replace("http://www.w3.org/2000/svg", "")


@pytest.mark.parametrize(
    ("text", "rule"),
    [("", "reads text; got no text and no file"), ("one", "no tokenizer, so a text is token ids"),
     ("1 " * 200, "1 to 128 tokens, got 200"), ("99", "99")],
)  # fmt: skip
def test_an_input_that_does_not_fit_is_refused(gpt2, text, rule):
    with pytest.raises(ValueError, match=rule):
        make_case(gpt2[0].program.pretrained, text)


@pytest.mark.parametrize(
    ("view", "more", "rule"),
    [
        ("files", {}, "a view is one of look, lens"),
        ("attribute", {"row": 99}, "there are 16 positions, got number 99"),
        ("attribute", {"answer": "1"}, "answers, got number '1'"),
        ("look", {"off": {"heads": [[0, 9, 0]]}}, "layers has 2 entries|head_outputs has 2 entries, got number 9"),
        ("look", {"off": {"heads": [[0, 0, 1.5]]}}, "lists of numbers and names, got 1.5"),
        ("look", {"off": {"heads": [[3, 0, 0]]}}, "head_outputs has 1 entries, got number 3"),
        ("look", {"off": {"sublayers": [["files", 0, 0]]}}, "is attention_output, feedforward_output, got 'files'"),
        ("flow", {"kind": 4}, "kinds of attention, got number 4"),
    ],
)
def test_a_request_that_does_not_fit_is_refused(gpt2, view, more, rule):
    explorer, request = gpt2
    with pytest.raises(ValueError, match=rule):
        explorer.ask(view, {**request, **more})


def test_arrays_are_read_without_pickles_and_not_without_end(gpt2):
    pretrained = gpt2[0].program.pretrained
    file = io.BytesIO()
    np.savez(file, input_ids=np.array([[1, 2, 3]]))
    assert make_case(pretrained, file=file.getvalue()).source == ("1", "2", "3")
    file = io.BytesIO()
    np.savez(file, input_ids=np.array([[object()]]))
    with pytest.raises(ValueError, match=r"allow_pickle|pickle"):
        make_case(pretrained, file=file.getvalue())
    file = io.BytesIO()
    np.savez_compressed(file, input_ids=np.zeros((1, 2 << 20)))
    with pytest.raises(ValueError, match="at most 8,388,608 bytes in all"):
        make_case(pretrained, file=file.getvalue())


def test_words_of_a_request_that_nobody_knows_change_nothing(gpt2):
    explorer, request = gpt2
    strange = {"input": {**request["input"], "case": 1}}
    assert explorer.ask("lens", strange) == explorer.ask("lens", request)
