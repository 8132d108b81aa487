"""The explorer's widget in Chromium, with the kernel behind it."""

import base64
import json
import time

import pytest

from flax_transformer import hub
from flax_transformer.task.explore import notebook
from tests.contract.golden import GOLDEN

pytest.importorskip("anywidget")
pytestmark = [pytest.mark.slow, pytest.mark.proves("explorer", "in a notebook's cell in headless Chromium")]
HARNESS = """<!doctype html><meta charset="utf-8"><title>cell</title><body><script>
const traits = TRAITS, handlers = [];
window.sent = [];
const get = (name) => traits[name], send = (message) => sent.push(message);
const model = { get, send, on: (_, f) => handlers.push(f), off: () => {} };
window.reply = (message) => handlers.forEach((f) => f(message));
import("data:text/javascript;base64,ESM").then((module) => module.default.render({ model, el: document.body }));
</script>"""


def test_a_cell_asks_the_kernel_and_shows_its_answer(chromium, tmp_path, monkeypatch):
    """The test is the notebook: it takes the page's messages to the widget and brings its answers back."""
    pretrained = hub.load(next(folder for folder in GOLDEN if folder.name == "gpt2"))
    made, path = notebook.widget(pretrained, "5 9 2 5", names=("small", "")), tmp_path / "cell.html"
    said = []
    monkeypatch.setattr(type(made), "send", lambda self, content, buffers=None: said.append(content))
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
                made._handle_custom_msg(message, [])
                chromium.run(f"window.reply({json.dumps(said.pop())})")
            time.sleep(0.05)
        chromium.drawn()

    inside, idle = chromium.run_inside, "!document.querySelector('.status').classList.contains('busy')"
    assert inside("document.querySelectorAll('.grid button').length") == 8  # what the widget was given to show
    inside("document.getElementById('input').value = '7 7 7'; document.getElementById('look').click(); 1")
    pump("look")
    assert chromium.run("window.sent.at(-1).request.input.text") == "7 7 7"
    assert inside(idle)
    assert inside("[...document.querySelector('.strip').children].map((e) => e.textContent).join(' ')") == "7 7 7"
    inside("document.getElementById('search').click(); 1")
    pump("tree")
    assert inside("document.querySelectorAll('.tree .leaf').length") == 4
    inside("document.getElementById('input').value = '<img src=x>'; document.getElementById('look').click(); 1")
    views.clear()
    pump("look")
    assert "<img src=x>" in inside("document.querySelector('.status.wrong').textContent")
    assert inside("document.querySelectorAll('img').length") == 0
    assert chromium.complaints() == []
    assert chromium.requests()[0] == path.resolve().as_uri()
