"""A chat template is a program by a stranger: it reaches nothing, and ends with little time, memory and text."""

import os
import time

import pytest

from flax_transformer.hub.processor.chat import render_chat
from tests.shares import only

pytestmark = pytest.mark.proves("chat templates", "in a process of their own that may do nothing else")

SAID = [{"role": "user", "content": "one"}]
INSIDES = {
    "class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "class of a message": "{{ messages.__class__.__base__ }}",
    "globals": "{{ cycler.__init__.__globals__.os.system('touch sprung') }}",
    "globals of a function": "{{ raise_exception.__globals__['json'] }}",
    "globals of the clock": "{{ strftime_now.__globals__['__builtins__'] }}",
    "the environment": "{{ self._TemplateReference__context.environment.from_string('x') }}",
    "a method of namespaces": "{% set n = namespace(__init__=1) %}",
    "a name in a namespace": "{% set n = namespace() %}{% set n.__class__ = 1 %}",
    "format": "{{ '{0.__class__.__mro__}'.format(1) }}",
    "code": "{{ (messages|map('first')).gi_frame.f_back }}",
    "change": "{{ messages.append(1) }}",
    "a file": "{% include '/etc/passwd' %}",
    "a module": "{% import 'os' as os %}{{ os.getcwd() }}",
}
SIZES = {
    "range": "{% for i in range(10 ** 9) %}{% endfor %}",
    "text": "{{ 'a' * 10 ** 10 }}",
    "list": "{{ ([0] * 10 ** 10)|length }}",
    "format": "{{ '%1000000000d' % 1 }}",
    "width": "{{ '{:>1000000000}'.format(1) }}",
    "filter": "{{ 'a'|center(10 ** 9) }}",
    "indent": "{{ messages|tojson(indent=10 ** 9) }}",
    "replace": "{{ ('a' * 10 ** 6).replace('a', 'a' * 10 ** 6) }}",
    "doubling": "{% set n = namespace(x='a') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "output": "{% for a in range(99999) %}{% for b in range(999) %}abcdefghijkl{% endfor %}{% endfor %}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "recursion of loops": "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}",
    "nesting": "{% if 1 %}" * 5000 + "{% endif %}" * 5000,
    "brackets": "{{ " + "(" * 50_000 + "1" + ")" * 50_000 + " }}",
}
TIMES = {
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "one step": "{{ 10 ** (10 ** 10) }}",
}


@pytest.mark.parametrize("name", INSIDES)
def test_a_template_reaches_no_insides(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="the chat template refuses this conversation: "):
        render_chat(INSIDES[name], SAID, {})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", SIZES)
def test_a_template_has_an_end_in_text_and_memory(name):
    with pytest.raises(ValueError, match="chat template") as caught:
        render_chat(SIZES[name], SAID, {})
    assert len(str(caught.value)) < 2000


@pytest.mark.rotates
@pytest.mark.parametrize("name", only(TIMES, "loops"))
def test_a_template_has_an_end_in_time(name):
    used = time.process_time()
    with pytest.raises(ValueError, match="must not need so much time or memory"):
        render_chat(TIMES[name], SAID, {})
    assert time.process_time() - used < 1  # of this process, which only waits
    assert render_chat("{{ messages[0].content }}", SAID, {})[0] == "one"


def test_a_template_sees_copies_and_no_objects():
    class Sly(str):
        def escape(self):
            os.abort()

    with pytest.raises(ValueError, match=r"refuses this conversation: .* has no attribute 'escape'"):
        render_chat("{{ messages[0].content.escape() }}", [{"role": "user", "content": Sly("x")}], {})
    with pytest.raises(ValueError, match=r"a template reads what JSON can say, got object in variables\.x"):
        render_chat("{{ x }}", SAID, {"x": object()})


def test_the_renderer_knows_nothing_of_this_process(monkeypatch):
    from flax_transformer.hub.processor import chat

    monkeypatch.setenv("HF_TOKEN", "secret")
    chat._end()
    render_chat("x", SAID, {})
    pid = chat._running[1].pid
    with open(f"/proc/{pid}/environ", "rb") as file:
        assert b"secret" not in file.read()
    with open(f"/proc/{pid}/limits") as file:
        limits = {line[:26].strip(): line[26:].split()[0] for line in file}
    assert limits["Max file size"] == limits["Max processes"] == "0"
