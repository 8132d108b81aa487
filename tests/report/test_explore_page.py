"""The explorer in Chromium: type, click a head, switch it off, compare, keep; light and dark, wide and narrow."""

import itertools
import json
import threading
import time
import urllib.request

import pytest

from flax_transformer import hub
from flax_transformer.report.explore import write_explore_page
from flax_transformer.task.explore.beside import put_beside
from flax_transformer.task.explore.explorer import Explorer
from flax_transformer.task.explore.page import all_views, write_page
from flax_transformer.task.explore.server import serve
from tests.contract.golden import GOLDEN
from tests.explore.test_beside import wrapped
from tests.explore.test_explore_server import HOSTILE

pytest.importorskip("uvicorn")
pytestmark = [pytest.mark.slow, pytest.mark.proves("explorer", "in headless Chromium, light, dark, 400 px")]
IDLE = "!document.querySelector('.status').classList.contains('busy')"
MOVED = "document.querySelector('[data-moved]').dataset.moved"


@pytest.fixture(scope="module")
def explorer():
    return Explorer(hub.load(next(folder for folder in GOLDEN if folder.name == "gpt2")), "small")


@pytest.fixture(scope="module")
def address(explorer):
    said = []
    keywords = {"say": said.append, "token": "secret"}
    threading.Thread(target=serve, args=(explorer,), kwargs=keywords, daemon=True).start()
    while not said:
        time.sleep(0.05)
    for _ in range(100):
        try:
            urllib.request.urlopen(said[0]).read()
            break
        except OSError:
            time.sleep(0.1)
    return said[0]


@pytest.fixture
def tab(chromium, address):
    def visit(more="", *, width=1280, dark=False):
        chromium.events.clear()
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        chromium.call("Emulation.setEmulatedMedia", features=scheme)
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        chromium.call("Emulation.setDeviceMetricsOverride", **size)
        for url in ("about:blank", address + more):
            chromium.call("Page.navigate", url=url)
            chromium.drawn()
        wait(chromium, "document.readyState === 'complete' && !!document.querySelector('.status')")
        return chromium

    yield visit
    assert chromium.complaints() == []
    assert all(url.startswith((address, "about:")) for url in chromium.requests())


def wait(page, script, seconds=240):
    end = time.monotonic() + seconds
    while not page.run(script):
        assert time.monotonic() < end, f"{script}: {page.run('document.body.innerText')[:500]}"
        time.sleep(0.1)


def type_in(page, selector, text):
    page.run(f"document.querySelector({json.dumps(selector)}).value = {json.dumps(text)}")


def press(page, selector):
    page.run(f"document.querySelector({json.dumps(selector)}).click()")
    wait(page, IDLE)


def test_a_text_is_typed_a_head_clicked_and_switched_off(tab):
    page = tab()
    type_in(page, "#input", "5 9 2 5")
    press(page, "#look")
    assert page.run("document.querySelectorAll('.grid button').length") == 2 * 4  # two heads, mean and rollout
    page.run("document.querySelectorAll('.grid button')[5].click()")
    assert "layer 2, head 2" in page.run("document.getElementById('head').textContent")
    assert page.run(MOVED) == ""
    press(page, "#switch")
    assert float(page.run(MOVED)) > 0
    assert page.run("document.querySelectorAll('.grid button.off').length") == 1
    assert "head 1 · 2 · 2" in page.run("document.getElementById('chips').textContent")
    for button in ("#attribute", "#compute-lens", "#effects", "#heads"):
        press(page, button)
    assert "completeness error" in page.text()
    assert "before layer 2" in page.text()
    kept = page.run("location.hash")
    again = tab(kept)
    wait(again, f"{IDLE} && !!document.querySelector('.grid button.off')")
    assert float(again.run(MOVED)) > 0


def test_two_texts_are_compared_and_one_is_patched_in(tab):
    page = tab()
    type_in(page, "#input", "5 9 2 5")
    type_in(page, "#other", "5 9 2 7")
    press(page, "#look")
    wait(page, "document.body.innerText.includes('On: 5 9 2 7')")
    press(page, "#trace")
    page.run("[...document.querySelectorAll('.lens button')].at(-1).click()")
    wait(page, IDLE)
    wait(page, "!!document.getElementById('chips')")
    assert "patched" in page.run("document.getElementById('chips').textContent")


def test_one_goes_on_from_a_node_of_the_tree(tab):
    page = tab()
    type_in(page, "#input", "5 9 2 5")
    press(page, "#look")
    press(page, "#search")
    assert page.run("document.querySelectorAll('.tree .leaf').length") == 4
    assert page.run("document.querySelectorAll('.hypotheses li').length") == 4
    every = page.run("document.querySelectorAll('.tree button').length")
    kept = "[...document.querySelectorAll('#results .group button')].find((b) => b.textContent === 'what was kept')"
    page.run(f"{kept}.click()")
    assert 0 < page.run("document.querySelectorAll('.tree button').length") < every
    label = page.run("document.querySelectorAll('.tree button.leaf')[0].ariaLabel")
    assert "hypothesis" in label
    page.call("Emulation.setFocusEmulationEnabled", enabled=True)
    page.run("document.querySelectorAll('.tree button.kept')[0].focus()")
    assert "kept" in page.run("document.querySelector('.tree').closest('.card').querySelector('.readout').textContent")
    page.run("document.querySelectorAll('.tree button.kept')[0].click()")
    wait(page, f"{IDLE} && !!document.getElementById('followed')")
    assert page.run("document.querySelector('.strip').children.length") == 5
    again = tab(page.run("location.hash"))
    wait(again, f"{IDLE} && !!document.getElementById('followed')")


def test_what_is_hovered_lights_up_elsewhere(tab):
    page = tab()
    type_in(page, "#input", "5 9 2 5")
    press(page, "#look")
    page.run("document.querySelectorAll('.strip button')[1].dispatchEvent(new PointerEvent('pointerenter'))")
    assert page.run("document.querySelectorAll('.linked.on').length") >= 1


def test_what_does_not_fit_is_said_and_markup_is_text(tab):
    page = tab()
    type_in(page, "#input", "<img src=x onerror=alert(1)>")
    page.run("document.getElementById('look').click()")
    wait(page, "document.querySelector('.status').classList.contains('wrong')")
    assert "<img src=x" in page.run("document.querySelector('.status').textContent")
    assert page.run("document.querySelectorAll('.status img').length") == 0
    page.events[:] = [event for event in page.events if "400" not in json.dumps(event)]  # which Chromium logs


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [400, 1280])
def test_it_fits_and_can_be_read(tab, width, dark):
    page = tab("#text=5+9+2+5", width=width, dark=dark)
    wait(page, "!!document.querySelector('.grid button')")
    assert page.run("document.documentElement.scrollWidth") <= width
    unnamed = "[...document.querySelectorAll('button')].filter(b => !b.textContent.trim() && !b.ariaLabel).length"
    assert page.run(unnamed) == 0
    background = page.run("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(18, 21, 26)") == dark


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [400, 1280])
def test_two_checkpoints_stand_beside_each_other(chromium, explorer, tmp_path, width, dark):
    pair = Explorer(explorer.program.pretrained, "<img src=x onerror=alert(1)>")
    put_beside(pair, Explorer(wrapped(explorer.program.pretrained.vocabulary, depth=3), "</script><b>other"))
    path = write_page(pair, tmp_path / "page.html", "5 9 2 5 7")
    chromium.open(path, width=width, dark=dark)
    assert "Jensen–Shannon" in chromium.text()
    assert "</script><b>other" in chromium.text()
    assert chromium.run("document.querySelectorAll('#beside-heads .grid button').length") == 3 * 6
    chromium.run("document.querySelectorAll('#beside-heads .grid button')[13].click()")
    assert "layer 3, head 2" in chromium.run("document.getElementById('beside-head').textContent")
    assert chromium.run("document.querySelectorAll('[aria-label=\"CKA of layers\"] td').length") == 3 * 4
    assert chromium.run("document.querySelectorAll('.tree .leaf').length") == 4
    assert chromium.run("document.documentElement.scrollWidth") <= width
    unnamed = "[...document.querySelectorAll('button')].filter(b => !b.textContent.trim() && !b.ariaLabel).length"
    assert chromium.run(unnamed) == 0
    assert chromium.run("document.querySelectorAll('img, b b').length") == 0
    assert chromium.complaints() == []


def test_what_tokens_are_called_cannot_become_markup(chromium, explorer, tmp_path):
    views = all_views(explorer, "5 9 2 5 7")
    for node, text in zip(views["tree"]["nodes"], itertools.cycle(HOSTILE), strict=False):
        node["name"] = text
    for tops in views["look"]["answer"]["after"]["tops"]:
        for one, text in zip(tops, HOSTILE, strict=False):
            one["name"] = text
    path = write_explore_page(tmp_path / "page.html", {**explorer.facts(), "name": HOSTILE[2]}, views)
    chromium.open(path)
    assert HOSTILE[0] in chromium.run("document.querySelector('.tree').textContent")
    assert chromium.run("document.querySelectorAll('#page img, #page script, #page style').length") == 0
    assert chromium.complaints() == []


def test_a_file_without_a_server_asks_for_nothing(chromium, explorer, tmp_path):
    path = write_page(explorer, tmp_path / "page.html", "5 9 2 5")
    chromium.open(path)
    assert "completeness error" in chromium.text()
    assert chromium.run("document.querySelectorAll('.grid button').length") == 8
    assert chromium.complaints() == []
    assert chromium.requests() == [path.resolve().as_uri()]
