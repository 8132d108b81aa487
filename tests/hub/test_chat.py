"""Conversations are written as a checkpoint's chat template has them; templates come and go with a checkpoint."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from flax_transformer import hub
from flax_transformer.data.text import train_byte_bpe
from flax_transformer.hub.processor import chat
from flax_transformer.hub.processor.chat import render_chat
from flax_transformer.hub.processor.tokenizer import HubTokenizer, load_hub_tokenizer

GOLDEN = Path(__file__).parent / "golden" / "gpt2"
SAID = [{"role": "user", "content": "one"}]
CHATML = (
    "{% for message in messages %}{{ '<s>' + message['role'] + '\n' + message['content'] + '</s>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<s>assistant\n' }}{% endif %}"
)


def save(folder, files=(), **config):
    """Write a tokenizer whose special tokens are read in texts, and more beside it."""
    HubTokenizer.of(train_byte_bpe(["one two <three>"], vocab_size=270).with_mask()).save(folder)
    options = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(options | config))
    for name, text in dict(files).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(text.encode())
    return folder


@pytest.fixture
def chatml(tmp_path):
    return load_hub_tokenizer(save(tmp_path / "chatml", chat_template=CHATML))


def test_tokens_are_those_of_the_text_with_marks_as_marks(chatml):
    text = chatml.apply_chat_template(SAID, tokenize=False, add_generation_prompt=True)
    assert text == "<s>user\none</s>\n<s>assistant\n"
    inputs = chatml.apply_chat_template(SAID, add_generation_prompt=True)
    assert inputs["input_ids"].tolist() == chatml.encode([text])
    assert inputs["input_ids"][0].tolist().count(chatml.bos) == 2
    assert inputs["attention_mask"].all()


def test_conversations_of_any_length_are_padded_together(chatml):
    several = [SAID, [*SAID, {"role": "assistant", "content": "two"}]]
    rows = chatml.apply_chat_template(several, padding_side="left")
    texts = chatml.apply_chat_template(several, tokenize=False)
    for ids, mask, text in zip(rows["input_ids"], rows["attention_mask"], texts, strict=True):
        assert chatml.decode(ids[mask != 0], skip_special_tokens=False) == text
    cut = chatml.apply_chat_template(several, truncation=True, max_length=4, return_dict=False)
    np.testing.assert_array_equal(cut, [ids[:4] for ids in chatml.encode(texts)])


def test_templates_are_found_in_files_before_options(tmp_path):
    files = {"chat_template.jinja": "file", "additional_chat_templates/tool_use.jinja": "tools"}
    folder = save(tmp_path, files, chat_template="options")
    both = load_hub_tokenizer(folder)
    assert both.chat_templates == {"default": "file", "tool_use": "tools"}
    say = lambda **options: both.apply_chat_template(SAID, tokenize=False, **options)  # noqa: E731
    assert (say(), say(tools=[]), say(chat_template="tool_use"), say(chat_template="own")) == (
        "file", "tools", "tools", "own",
    )  # fmt: skip
    listed = [{"name": "rag", "template": "papers"}, {"name": "short", "template": "s"}]
    named = load_hub_tokenizer(save(tmp_path / "listed", chat_template=listed))
    assert named.chat_templates == {"rag": "papers", "short": "s"}
    with pytest.raises(ValueError, match=r"no default chat template; chat_template must be one of \['rag', 'short'\]"):
        named.apply_chat_template(SAID)


def test_templates_come_and_go_with_the_checkpoint(tmp_path):
    files = {"chat_template.jinja": "a\r\n", "additional_chat_templates/rag.jinja": "b"}
    tokenizer = load_hub_tokenizer(save(tmp_path / "in", files))
    pretrained = dataclasses.replace(hub.load(GOLDEN), tokenizer=tokenizer)
    (tmp_path / "out" / "additional_chat_templates").mkdir(parents=True)
    (tmp_path / "out" / "additional_chat_templates" / "rag.jinja").write_text("old")
    for _ in range(2):
        hub.save(pretrained, tmp_path / "out")
    for name, text in files.items():
        assert (tmp_path / "out" / name).read_bytes() == text.encode()
    assert not (tmp_path / "out" / "additional_chat_templates" / "additional_chat_templates").exists()
    assert hub.load(tmp_path / "out").tokenizer.chat_templates == tokenizer.chat_templates


def test_tokens_that_an_assistant_speaks_are_marked(tmp_path):
    template = (
        "{% for m in messages %}<s>{% if m.role == 'assistant' %}{% generation %}{{ m.content }}</s>{% endgeneration %}"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    tokenizer = load_hub_tokenizer(save(tmp_path, chat_template=template))
    talk = [[*SAID, {"role": "assistant", "content": "two ☃"}, *SAID], [{"role": "assistant", "content": "o"}]]
    inputs = tokenizer.apply_chat_template(talk, return_assistant_tokens_mask=True)
    spoken = [
        tokenizer.decode(ids[mask != 0], skip_special_tokens=False)
        for ids, mask in zip(inputs["input_ids"], inputs["assistant_masks"], strict=True)
    ]
    assert spoken == ["two ☃</s>", "o</s>"]


def test_the_last_message_is_continued(chatml):
    talk = [*SAID, {"role": "assistant", "content": "two and"}]
    assert chatml.apply_chat_template(talk, tokenize=False, continue_final_message=True).endswith("assistant\ntwo and")
    with pytest.raises(ValueError, match="continued without a new one begun"):
        chatml.apply_chat_template(talk, continue_final_message=True, add_generation_prompt=True)


def test_conversations_that_cannot_be_written_say_why(chatml, tmp_path):
    for wrong in ([], "hello", ["hello"], [{"role": "user", "content": np.ones(2)}]):
        with pytest.raises(ValueError, match=r"must be a list of messages|got ndarray in messages\[0\]\.content"):
            chatml.apply_chat_template(wrong)
    with pytest.raises(
        ValueError, match=r"the chat template of .*chatml refuses this conversation: roles must alternate"
    ):
        chatml.apply_chat_template(SAID, chat_template="{{ raise_exception('roles must alternate') }}")
    with pytest.raises(ValueError, match="refuses this conversation: 'ghost' is undefined"):
        chatml.apply_chat_template(SAID, chat_template="{{ ghost.name }}")
    with pytest.raises(ValueError, match="return_tensors='pt'; arrays are NumPy's"):
        chatml.apply_chat_template(SAID, return_tensors="pt")
    with pytest.raises(ValueError, match=r"needs a chat template, .* has none; chat_template=… gives one"):
        load_hub_tokenizer(save(tmp_path / "bare")).apply_chat_template(SAID)


@pytest.mark.parametrize("said", [7, {"a": 1}, [{"name": "x"}], ["x"], {"name": "x", "template": 3}])
def test_what_is_no_template_names_the_file(tmp_path, said):
    tokenizer = load_hub_tokenizer(save(tmp_path, chat_template=said))
    with pytest.raises(ValueError, match=r"tokenizer_config\.json must give chat_template as a text"):
        tokenizer.apply_chat_template(SAID)


def test_a_template_of_no_unicode_names_the_file(tmp_path):
    tokenizer = load_hub_tokenizer(save(tmp_path, chat_template="\ud800"))
    with pytest.raises(ValueError, match=r"tokenizer_config\.json must give chat_template without lone surrogates"):
        tokenizer.apply_chat_template(SAID)


def test_a_template_of_other_bytes_names_the_file(tmp_path):
    tokenizer = load_hub_tokenizer(save(tmp_path))
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"chat_template\.jinja is not a readable template"):
        load_hub_tokenizer(tmp_path).apply_chat_template(SAID)
    assert not tokenizer.chat_templates


def test_a_renderer_that_ends_is_begun_again():
    for _ in range(2):
        assert render_chat("{{ x }}", SAID, {"x": "ü☃"})[0] == "ü☃"
        pid, worker = chat._running
        worker.kill()
        worker.wait()
    chat._running = pid - 1, worker  # as in a copy of another process
    assert render_chat("{{ messages[0].content }}", SAID, {})[0] == "one"


def test_an_interrupted_conversation_does_not_answer_the_next(monkeypatch):
    render_chat("x", SAID, {})

    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(chat._running[1].stdout, "readline", interrupted, raising=False)
    with pytest.raises(KeyboardInterrupt):
        render_chat("first", SAID, {})
    assert render_chat("second", SAID, {})[0] == "second"


def test_a_renderer_that_cannot_begin_says_what_it_needs(monkeypatch, tmp_path):
    (tmp_path / "worker.py").write_text("import no_such_package")
    chat._end()
    monkeypatch.setattr(chat, "_WORKER", tmp_path / "worker.py")
    with pytest.raises(ValueError, match=r"needs jinja2 3\.1\.6 or newer, and a Python that finds it: "):
        render_chat("x", SAID, {})
    monkeypatch.undo()
    assert render_chat("x", SAID, {})[0] == "x"
    monkeypatch.setattr(chat.sys, "executable", str(tmp_path / "none"))
    chat._end()
    with pytest.raises(ValueError, match="needs a Python process of its own, none could be begun: "):
        render_chat("x", SAID, {})
