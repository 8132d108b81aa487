"""Conversations as a checkpoint's model reads them: its chat template, rendered in a process of its own.

A template is a program that comes with a checkpoint (Jinja, as `transformers` has it); `chat_worker` says what it
may do, which is little.
"""

import atexit
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flax_transformer.hub.processor.call import read_call
from flax_transformer.hub.processor.file import MORE, SPECIAL, TEMPLATE, read_object

_WORKER = Path(__file__).with_name("chat_worker.py")
_KEPT = ("TZ", "LD_LIBRARY_PATH", "PYTHONHOME")
_CONTINUE = "CONTINUE_FINAL_MESSAGE_TAG "
_TURN = threading.Lock()
_running: tuple[int, subprocess.Popen] | None = None


def read_templates(files: Mapping[str, bytes], folder: Path) -> dict[str, str]:
    """Find the chat templates among tokenizer files, by name; the one that is used unasked is `default`.

    Files with templates stand before what tokenizer_config.json says.

    Raises:
        ValueError: one that is no text; names the file.
    """
    found = {}
    for name in sorted(files):
        if name == TEMPLATE or name.startswith(f"{MORE}/"):
            try:
                text = files[name].decode("utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(f"{folder / name} is not a readable template: {error}") from error
            found["default" if name == TEMPLATE else Path(name).stem] = text
    if found:
        return found
    said = read_object(files, "tokenizer_config.json", folder).get("chat_template")
    said = {"name": "default", "template": said} if isinstance(said, str) else said
    for each in [] if said is None else said if isinstance(said, list) else [said]:
        if not isinstance(each, dict) or not all(isinstance(each.get(key), str) for key in ("name", "template")):
            raise ValueError(
                f"{folder / 'tokenizer_config.json'} must give chat_template as a text, or a list of objects with name"
                f" and template, got {each!r:.60}"
            )
        if any("\ud800" <= letter <= "\udfff" for letter in each["template"]):
            raise ValueError(f"{folder / 'tokenizer_config.json'} must give chat_template without lone surrogates")
        found[each["name"]] = each["template"]
    return found


def choose_template(templates: Mapping[str, str], asked: str | None, tools: Any, folder: Path) -> str:
    """Return the template asked for, by name or as it is; else the checkpoint's: `tool_use` for tools, or `default`.

    Raises:
        ValueError: there is none.
    """
    if asked is not None:
        return templates.get(asked, asked) if len(templates) > 1 or "default" not in templates else asked
    if not templates:
        raise ValueError(f"a conversation needs a chat template, {folder} has none; chat_template=… gives one")
    name = "tool_use" if tools is not None and "tool_use" in templates else "default"
    if name not in templates:
        raise ValueError(f"{folder} has no default chat template; chat_template must be one of {sorted(templates)}")
    return templates[name]


def render_chat(
    template: str,
    messages: Sequence[Any],
    variables: Mapping[str, Any],
    *,
    continue_final_message: bool = False,
    source: str = "the chat template",
) -> tuple[str, list[tuple[int, int]]]:
    """Write a conversation as a template has it.

    Args:
        template: Jinja, as `transformers` understands it.
        messages: objects with `role` and `content`, or whatever the template reads.
        variables: what else it reads: tools, documents, add_generation_prompt, special tokens, and so on.
        continue_final_message: end within the last message, so that it can be written on.
        source: what the template is called in messages.

    Returns:
        The text, and the spans in it that an assistant speaks, where the template marks them.

    Raises:
        ValueError: messages that are none, what the template itself raises, or a template that asks for what it may
            not have: another object's insides, files, or time, memory and text without end.
    """
    if not messages or not all(isinstance(message, Mapping) for message in messages):
        raise ValueError(
            f"a conversation must be a list of messages, objects with role and content, got {messages!r:.80}"
        )
    said = [_aliased({key: value for key, value in message.items() if value is not None}) for message in messages]
    said = _plain(said, "messages")
    final = _open_end(said) if continue_final_message else ""
    answer = _ask({"template": template, "variables": _plain(variables, "variables") | {"messages": said}}, source)
    text = answer["text"]
    if continue_final_message:
        place = text.rfind(_CONTINUE.strip())
        if place < 0 or final.strip() not in text:
            raise ValueError(f"{source} must keep the final message for it to be continued, it leaves it out")
        whole = text[place : place + len(_CONTINUE)] == _CONTINUE
        text = text[:place] if whole else text[:place].rstrip()
    return text, [tuple(span) for span in answer["spans"]]


def apply_template(
    tokenizer: Any,
    conversation: Sequence[Any],
    asked: str | None,
    variables: Mapping[str, Any],
    *,
    tokenize: bool,
    **options: Any,
) -> Any:
    """Do what `HubTokenizer.apply_chat_template` says."""
    many = len(conversation) > 0 and isinstance(conversation[0], list | tuple)
    ends = options.pop("continue_final_message", False)
    marked, whole = options.pop("return_assistant_tokens_mask", False), options.pop("return_dict", True)
    call = {name: options.pop(name) for name in ("truncation", "return_tensors") if name in options}
    call |= {"add_special_tokens": False, **(options.pop("tokenizer_kwargs", None) or {})}
    given = {"pairs": None, "side": None, "truncate": False}
    given |= {"max_length": options.pop("max_length", None), "padding": options.pop("padding", "longest")}
    if ends and (marked or variables["add_generation_prompt"]):
        raise ValueError("a final message is continued without a new one begun and without marks of who speaks")
    if marked and not (tokenize and whole):
        raise ValueError("return_assistant_tokens_mask marks tokens: it needs tokenize and return_dict")
    template = choose_template(tokenizer.chat_templates, asked, variables["tools"], tokenizer.folder)
    variables = {**_special_tokens(tokenizer), **options, **variables}
    how = {"continue_final_message": bool(ends), "source": f"the chat template of {tokenizer.folder}"}
    said = [render_chat(template, each, variables, **how) for each in (conversation if many else [conversation])]
    texts = [text for text, _ in said]
    if not tokenize:
        return texts if many else texts[0]
    call = read_call(given, call, tokenizer.model_max_length)
    rows = tokenizer.encode_rows(texts, call, offsets=marked)
    inputs = tokenizer.pad_rows(rows, call)
    if marked:
        inputs["assistant_masks"] = np.zeros_like(inputs["input_ids"])
        for i, (row, (_, spans)) in enumerate(zip(rows, said, strict=True)):
            place = slice(None) if not call.mask else inputs["attention_mask"][i] != 0
            inputs["assistant_masks"][i, place] = _spoken(spans, row.offsets)
    return inputs if whole else inputs["input_ids"]


def _spoken(spans: Sequence[tuple[int, int]], offsets: Sequence[tuple[int, int]]) -> list[int]:
    """Mark the tokens, at `offsets` in a text, that are in one of its spans."""
    return [int(any(a < end and b > begin for begin, end in spans)) for a, b in offsets]


def _special_tokens(tokenizer: Any) -> dict[str, str]:
    """Spell the special tokens, under the names that templates have for them."""
    config = read_object(tokenizer.files, "tokenizer_config.json", tokenizer.folder)
    own = {name: value for name, value in config.items() if name.endswith("_token") and isinstance(value, str)}
    more = config.get("extra_special_tokens")
    own |= {name: value for name, value in more.items() if isinstance(value, str)} if isinstance(more, dict) else {}
    ids = {role: getattr(tokenizer, role) for role in SPECIAL}
    roles = {f"{role}_token": tokenizer.tokens([id])[0] for role, id in ids.items() if id is not None}
    return {name: text for name, text in own.items() if name.removesuffix("_token") not in SPECIAL} | roles


def _aliased(message: dict[str, Any]) -> dict[str, Any]:
    """Rename a message's reasoning as templates read it."""
    names = ("reasoning_content", "thinking", "reasoning")
    reasoning = next((message[name] for name in names if message.get(name) is not None), None)
    if reasoning is None:
        return message
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _open_end(messages: list[dict[str, Any]]) -> str:
    """Mark, in place, where the last message ends; give its text."""
    content = messages[-1].get("content")
    if isinstance(content, str):
        messages[-1]["content"] = content + _CONTINUE
        return content
    blocks = (
        [each for each in content if isinstance(each, dict) and "text" in each] if isinstance(content, list) else []
    )
    if not blocks:
        raise ValueError(f"to continue the final message it must have a text, got {messages[-1]!r:.80}")
    final, blocks[-1]["text"] = blocks[-1]["text"], blocks[-1]["text"] + _CONTINUE
    return final


def _plain(value: Any, where: str) -> Any:
    """Copy what JSON can say; all that a template gets to see.

    Raises:
        ValueError: anything else, a function or an array, say.
    """
    if value is None or isinstance(value, bool | str | int | float):
        return value
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    raise ValueError(f"a template reads what JSON can say, got {type(value).__name__} in {where}")


def _ask(request: dict[str, Any], source: str) -> dict[str, Any]:
    """Have the process of templates answer; it is begun anew where it ended, or where this process is a copy."""
    global _running
    with _TURN:
        if _running is None or _running[0] != os.getpid() or _running[1].poll() is not None:
            _running = os.getpid(), _begin()
        worker = _running[1]
        try:
            worker.stdin.write(json.dumps(request).encode() + b"\n")
            worker.stdin.flush()
            line = worker.stdout.readline()
        except OSError:
            line = b""
        except BaseException:
            _end()  # an answer that nobody waited for must not be the next one's
            raise
        if not line.endswith(b"\n"):
            worker.wait()
            _end()
            if worker.returncode > 0:  # not by a signal
                raise ValueError(f"{source} needs jinja2 3.1.6 or newer, and a Python that finds it: {sys.executable}")
            raise ValueError(f"{source} must not need so much time or memory: it was stopped")
    answer = json.loads(line)
    if "error" in answer:
        raise ValueError(f"{source} refuses this conversation: {answer['error']}")
    return answer


def _begin() -> subprocess.Popen:
    path = os.pathsep.join(each for each in sys.path if each and os.path.isabs(each))
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    try:
        return subprocess.Popen(
            [sys.executable, "-S", "-P", _WORKER],
            env={"PYTHONPATH": path, "PYTHONUTF8": "1", **kept},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except (OSError, TypeError) as error:
        raise ValueError(f"a chat template needs a Python process of its own, none could be begun: {error}") from error


@atexit.register
def _end() -> None:
    global _running
    if _running is not None and _running[0] == os.getpid():
        _running[1].kill()
        _running[1].communicate()
    _running = None
