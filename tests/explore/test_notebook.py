"""The widget: its traits, its messages, and what it says without anywidget."""

import json
import sys

import pytest

from flax_transformer import hub
from flax_transformer.task.explore import notebook
from tests.contract.golden import GOLDEN
from tests.explore.test_explore_server import HOSTILE

pytest.importorskip("anywidget")
pytestmark = pytest.mark.proves("explorer", "in a notebook, asked by messages")


@pytest.fixture(scope="module")
def pretrained():
    return hub.load(next(folder for folder in GOLDEN if folder.name == "gpt2"))


@pytest.fixture
def asked(pretrained, monkeypatch):
    """A widget, and a function that gives it a message as a page does and returns what it sends."""
    made = notebook.widget(pretrained, names=("small", ""))
    sent = []
    monkeypatch.setattr(type(made), "send", lambda self, content, buffers=None: sent.append(content))

    def ask(content):
        sent.clear()
        made._handle_custom_msg(content, [])
        return [*sent]

    return made, ask


def test_its_traits_are_the_page(asked):
    made, _ = asked
    state = made.get_state()
    assert {"page", "title", "height", "_esm"} <= state.keys()
    assert "small: explorer" in (made.title,)
    assert '"kernel":true' in state["page"]
    assert "connect-src" not in state["page"]
    assert "export default" in state["_esm"]
    assert "innerHTML" not in state["_esm"]


@pytest.mark.rotates
def test_a_message_is_answered_as_the_server_would(asked):
    made, ask = asked
    request = {"input": {"text": "5 9 2 5"}}
    (answer,) = ask({"id": "a 1", "view": "look", "request": request})
    assert (answer["id"], answer["status"]) == ("a 1", 200)
    found = json.loads(answer["text"])
    assert found["source"] == ["5", "9", "2", "5"]
    assert found["answer"]["after"] == json.loads(json.dumps(made.explorer.ask("look", request)))["answer"]["after"]


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        ({"id": "1", "view": "files", "request": {}}, "a view is one of"),
        ({"id": "1", "view": "look", "request": []}, "must be an object"),
        ({"id": "1", "view": "look", "request": {"input": 3}}, "must be an object"),
        ({"id": "1", "view": "look"}, "must be an object"),
        ({"id": "1", "view": "look", "request": {"input": {"text": "no ids"}}}, "a text is token ids"),
    ],
)
def test_what_does_not_fit_is_said_in_one_sentence(asked, content, rule):
    (answer,) = asked[1](content)
    assert answer["status"] == 400
    assert rule in json.loads(answer["text"])["error"]


@pytest.mark.parametrize("content", [None, [], "look", {}, {"view": 3}, {"request": {}}])
def test_what_is_no_question_is_not_answered(asked, content):
    assert asked[1](content) == []


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_cannot_become_markup(pretrained, text):
    plain, made = (notebook.widget(pretrained, names=(name, "")).page for name in ("", text))
    assert made.count("<script") == plain.count("<script")
    assert made.count("</script") == plain.count("</script")


def test_without_anywidget_it_says_what_to_install(pretrained, monkeypatch):
    notebook._widget_class.cache_clear()
    monkeypatch.setitem(sys.modules, "anywidget", None)
    with pytest.raises(ValueError, match=r"pip install 'flax-transformer\[widget\]'"):
        notebook.widget(pretrained)
