"""The server answers this machine alone, who has the token, in bounded sizes; texts stay texts, no file is served."""

import json
import threading
import time
import urllib.error
import urllib.request
from types import MappingProxyType

import pytest

from flax_transformer.report.explore import explore_page
from flax_transformer.task.explore import server
from flax_transformer.task.explore.explorer import Explorer

pytest.importorskip("starlette")
uvicorn = pytest.importorskip("uvicorn")
pytestmark = pytest.mark.proves("explorer", "loopback, token, sizes, escaping")
HOSTILE = [
    "</script><script>alert(1)</script>", "<!--<script>", "<img src=x onerror=alert(1)>", "\u2028",
    "über ☃ <mask> </s>", "{{js}}", "</style>", "\ud800",
]  # fmt: skip
FACTS = {"name": "m", "architecture": "A", "reads": ["text"], "text": True, "file": False, "ids": False}


class Asked(Explorer):
    """A model that answers with what it is asked."""

    def __init__(self):
        self.first = MappingProxyType({})

    def facts(self):
        return FACTS

    def ask(self, view, request):
        if view == "fail":
            raise ValueError("the rule, got this\nTraceback")
        return {"view": view, "request": request, "number": float("nan")}


@pytest.fixture(scope="module")
def address():
    said = []
    serving = threading.Thread(
        target=server.serve, args=(Asked(),), kwargs={"say": said.append, "token": "secret"}, daemon=True
    )
    serving.start()
    for _ in range(600):
        if said:
            break
        time.sleep(0.05)
    for _ in range(600):
        try:
            urllib.request.urlopen(said[0]).read()
            break
        except urllib.error.URLError:
            time.sleep(0.05)
    return said[0]


def get(url, data=None, **headers):
    request = urllib.request.Request(url, data, headers)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.read().decode(), answer.headers
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), error.headers


JSON = {"Content-Type": "application/json"}


def test_the_page_and_its_views_are_there(address):
    assert address.startswith("http://127.0.0.1:")
    code, page, headers = get(address)
    assert code == 200
    assert "connect-src 'self'" in page
    assert headers["Referrer-Policy"] == "no-referrer"
    code, found, _ = get(f"{address}look", json.dumps({"input": {"text": "a"}}).encode(), **JSON)
    assert (code, json.loads(found)) == (200, {"view": "look", "request": {"input": {"text": "a"}}, "number": None})


@pytest.mark.parametrize("token", ["", "wrong", "secre", "secret0", "%73ecret%00"])
def test_without_the_token_nothing_is_found(address, token):
    base = address.removesuffix("secret/")
    assert get(f"{base}{token}/")[0] == 404
    assert get(f"{base}{token}/look", b"{}", **JSON)[0] in (404, 405)


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "192.168.0.1", "10.0.0.1:99"])
def test_another_name_of_this_machine_is_refused(address, host):
    assert get(address, Host=host)[0] == 403
    assert get(f"{address}look", b"{}", **JSON, Host=host)[0] == 403


@pytest.mark.parametrize(
    "path", ["../../etc/passwd", "..%2f..%2fetc%2fpasswd", "config.json", "%2e%2e/config.json", "look"]
)
def test_no_file_is_served(address, path):
    code, said, _ = get(f"{address}{path}")
    assert code in (404, 405)
    assert "root:" not in said


def test_sizes_are_bounded(address, monkeypatch):
    monkeypatch.setattr(server, "LARGEST", 1000)
    assert get(f"{address}look", json.dumps({"input": {"text": "a" * 900}}).encode(), **JSON)[0] == 200
    code, said, _ = get(f"{address}look", json.dumps({"input": {"text": "a" * 2000}}).encode(), **JSON)
    assert (code, "at most 1,000 bytes" in said) == (413, True)


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b'{"input": 3}', b'{"off": []}', b"[" * 5000])
def test_what_is_no_request_is_said_in_one_sentence(address, body):
    code, said, _ = get(f"{address}look", body, **JSON)
    assert code in (200, 400) if body == b'{"off": []}' else code == 400
    assert "Traceback" not in said


def test_other_kinds_of_content_are_refused(address):
    assert get(f"{address}look", b"{}", **{"Content-Type": "text/plain"})[0] == 415


def test_an_error_is_a_sentence(address):
    code, said, _ = get(f"{address}fail", b"{}", **JSON)
    assert (code, json.loads(said)) == (400, {"error": "the rule, got this"})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "example.org", ""])
def test_only_loopback_is_served(host):
    with pytest.raises(ValueError, match="a loopback address alone"):
        server.serve(Asked(), host=host)


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_cannot_become_markup(text):
    plain = explore_page(FACTS, {"input": {"text": ""}, "look": None}, served=True)
    page = explore_page({**FACTS, "name": text}, {"input": {"text": text}, "look": None}, served=True)
    assert page.count("<script") == plain.count("<script")
    assert page.count("</script") == plain.count("</script")
    assert page.count("<!--") == plain.count("<!--")


def test_scripts_write_texts_as_texts():
    page = explore_page(FACTS, served=True)
    assert "innerHTML" not in page
    assert "insertAdjacentHTML" not in page
    assert "document.write" not in page


def test_tokens_are_long_and_never_the_same():
    assert len({server.new_token() for _ in range(20)}) == 20
    assert len(server.new_token()) >= 32
