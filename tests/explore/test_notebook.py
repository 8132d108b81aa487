"""The widget: its traits, its messages, what it says without anywidget; in Chromium with the kernel behind it."""

import base64
import json
import sys
import time

import pytest

from flax_transformer import hub
from flax_transformer.task.explore import notebook
from tests.contract.golden import GOLDEN
from tests.explore.test_explore_server import HOSTILE
from tests.report.conftest import chromium  # noqa: F401

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


HARNESS = """<!doctype html><meta charset="utf-8"><title>cell</title><body><script>
const traits = TRAITS, handlers = [];
window.sent = [];
const get = (name) => traits[name], send = (message) => sent.push(message);
const model = { get, send, on: (_, f) => handlers.push(f), off: () => {} };
window.reply = (message) => handlers.forEach((f) => f(message));
import("data:text/javascript;base64,ESM").then((module) => module.default.render({ model, el: document.body }));
</script>"""
FRAME = "(() => { const b = document.querySelector('iframe').getBoundingClientRect(); return [b.left, b.top]; })()"


@pytest.mark.slow
def test_a_cell_asks_the_kernel_and_shows_its_answer(chromium, pretrained, asked, tmp_path):  # noqa: F811
    """The test is the notebook: it takes the page's messages to the widget and brings its answers back."""
    _, ask = asked
    made, path = notebook.widget(pretrained, "5 9 2 5", names=("small", "")), tmp_path / "cell.html"
    traits = json.dumps({name: getattr(made, name) for name in ("page", "title", "height")}).replace("<", "\\u003c")
    esm = base64.b64encode(made._esm.encode()).decode()
    path.write_text(HARNESS.replace("ESM", esm).replace("TRAITS", traits))
    chromium.open(path)
    answered, views = 0, []

    def pump(view, seconds=240):
        nonlocal answered
        end = time.monotonic() + seconds
        while view not in views:
            assert time.monotonic() < end, views
            for message in chromium.run("window.sent")[answered:]:
                answered += 1
                views.append(message["view"])
                (answer,) = ask(message)
                chromium.run(f"window.reply({json.dumps(answer)})")
            time.sleep(0.05)
        chromium.drawn()

    def type_in(text):
        x, y = chromium.run(FRAME)
        for kind in ("mousePressed", "mouseReleased"):
            chromium.call("Input.dispatchMouseEvent", type=kind, x=x + 400, y=y + 160, button="left", clickCount=3)
        chromium.call("Input.insertText", text=text)
        enter = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13}
        chromium.call("Input.dispatchKeyEvent", type="keyDown", **enter)

    type_in("7 7 7")
    pump("look")
    assert chromium.run("window.sent.at(-1).request.input.text") == "7 7 7"
    chromium.screenshot(tmp_path / "cell.png", whole=False)
    assert chromium.complaints() == []
    assert chromium.requests()[0] == path.resolve().as_uri()
