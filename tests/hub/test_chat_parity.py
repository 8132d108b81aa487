"""Chat templates of every form in use, against transformers."""

import contextlib
import json

import pytest
import tokenizers

from flax_transformer.hub.processor.tokenizer import load_hub_tokenizer
from tests.hub.test_hub_tokenizer_parity import _byte_level

transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.parity, pytest.mark.proves("chat templates", "rendered as `transformers` does")]

MARKS = [
    "<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>",
    "<|end_header_id|>", "<|eot_id|>", "[INST]", "[/INST]", "<|user|>", "<|assistant|>",
]  # fmt: skip
TEMPLATES = {
    "chatml": """{% for message in messages %}
{%- if loop.first and messages[0]['role'] != 'system' -%}
    {{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
{%- endif %}
{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{% if add_generation_prompt -%}
    {{ '<|im_start|>assistant\\n' }}
{%- endif %}
""",
    "llama 2": (
        "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
        "{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}"
        "{% set system_message = false %}{% endif %}{% for message in loop_messages %}"
        "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
        "{% if loop.index0 == 0 and system_message != false %}"
        "{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}"
        "{% else %}{% set content = message['content'] %}{% endif %}"
        "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
        "{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
    ),
    "llama 3": """{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = "26 Jul 2024" %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- if tools is not none %}
    {{- "You have these functions. " }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
        {{- '{"name": "' + tool_call.name + '", "parameters": ' }}
        {{- tool_call.arguments | tojson }}{{- "}" }}{{- "<|eot_id|>" }}
    {%- else %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
        {{- "<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
""",
    "mistral": """{{ bos_token }}{%- set ns = namespace(index=0, last=none) %}
{%- for message in messages if message["role"] != "system" %}
    {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
        {{- raise_exception("After the optional system message, roles must alternate") }}
    {%- endif %}
    {%- set ns.index = ns.index + 1 %}
{%- endfor %}
{%- for message in messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and loop.last %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- for key, val in tool.function.items() if key != "return" %}
                    {%- if val is string %}{{- '"' + key + '": "' + val + '"' }}
                    {%- else %}{{- '"' + key + '": ' + val|tojson }}{%- endif %}
                    {%- if not loop.last %}{{- ", " }}{%- endif %}
                {%- endfor %}
            {%- endfor %}
            {{- "] [/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {{- "[INST] " + message["content"] + "[/INST]" }}
    {%- elif message["role"] == "assistant" %}
        {%- generation %}{{- " " + message["content"]|trim + eos_token}}{%- endgeneration %}
    {%- endif %}
{%- endfor %}
""",
    "zephyr": """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>
'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}
""",
    "everything": """{%- macro show(value, depth=0) %}{% if value is mapping %}{% for k, v in value|dictsort %}
{{ "  " * depth }}{{ k }}: {{ show(v, depth + 1) }}{% endfor %}
{%- else %}{{ value|string|upper }}{% endif %}{% endmacro %}
{%- for d in documents or [] %}<doc title="{{ d.title }}">{{ d.text|escape }}</doc>{% endfor %}
{%- for m in messages %}{% if loop.index > 5 %}{% break %}{% endif %}
{{ m.reasoning_content or '' }}{{ show(m) }}{% set x = m.content.split('o') %}{{ x|length }}{{ x[-1][::-1] }}
{{- m.content.replace('a', 'ä').lstrip('H') }}|{{ '%05.2f'|format(loop.index / 3) }}{{ enable_thinking|default(none) }}
{%- endfor %}{{ dict(a=1, b=[1, 2])|tojson(sort_keys=true) }}{{ pad_token is defined }}{{ unk_token }}
{{- strftime_now("%Y") }}{{ messages|map(attribute='role')|join(',') }}{{ image_token }}""",
}
USER = {"role": "user", "content": "Hello, <|im_end|> naïve ☃ & \"'you'\"  "}
ANSWER = {"role": "assistant", "content": " All is well.\n"}
TOOL = {
    "type": "function",
    "function": {"name": "add", "description": "Adds ö", "parameters": {"type": "object", "properties": {"a": {}}}},
}
CALL = {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1.5}}}], "content": None}
TALKS = {
    "one": [USER],
    "three": [USER, ANSWER, USER],
    "system": [{"role": "system", "content": "Be brief."}, USER, ANSWER],
    "tools": [USER, CALL, {"role": "tool", "content": {"sum": [1, None]}}],
    "reasoning": [USER, {**ANSWER, "thinking": "hm"}],
    "two users": [USER, USER],
}
OPTIONS = [
    {},
    {"add_generation_prompt": True},
    {"tools": [TOOL], "enable_thinking": False, "add_generation_prompt": True},
    {"documents": [{"title": "T", "text": "<b>"}], "date_string": "1 May", "eos_token": "<eos>"},
    {"continue_final_message": True},
]


@pytest.fixture(scope="module", params=TEMPLATES)
def pair(request, tmp_path_factory):
    """Return our reading of a folder and theirs."""
    folder = tmp_path_factory.mktemp("chat")
    inner = _byte_level([])
    inner.add_special_tokens([tokenizers.AddedToken(mark, special=True, normalized=False) for mark in MARKS])
    inner.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "image_token": "[INST]"}
    options = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATES[request.param], **names}
    inputs = ["input_ids", "attention_mask"]
    (folder / "tokenizer_config.json").write_text(json.dumps({**options, "model_input_names": inputs}))
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return load_hub_tokenizer(folder), transformers.AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("talk", TALKS)
def test_conversations_are_theirs(pair, talk):
    ours, theirs = pair
    for options in OPTIONS:
        try:
            expected = theirs.apply_chat_template(TALKS[talk], tokenize=False, **options)
        except Exception:
            with pytest.raises(ValueError, match=r"chat template|final message"):
                ours.apply_chat_template(TALKS[talk], tokenize=False, **options)
            continue
        assert ours.apply_chat_template(TALKS[talk], tokenize=False, **options) == expected
        ids = theirs.apply_chat_template(TALKS[talk], return_dict=False, **options)
        assert ours.apply_chat_template(TALKS[talk], **options)["input_ids"].tolist() == [ids]


def test_most_conversations_are_written(pair):
    ours, _ = pair
    written = 0
    for talk in TALKS.values():
        for options in OPTIONS:
            with contextlib.suppress(ValueError):
                written += bool(ours.apply_chat_template(talk, tokenize=False, **options))
    assert written >= 12


def test_marks_of_the_assistant_are_theirs(pair):
    ours, theirs = pair
    talk = [USER, ANSWER, USER, {"role": "assistant", "content": "no"}]
    expected = theirs.apply_chat_template(talk, return_dict=True, return_assistant_tokens_mask=True)
    inputs = ours.apply_chat_template(talk, return_assistant_tokens_mask=True)
    assert inputs["assistant_masks"].tolist() == [expected["assistant_masks"]]
    if "endgeneration" in ours.chat_templates["default"]:
        assert 0 < inputs["assistant_masks"].sum() < inputs["assistant_masks"].size


def test_saved_by_transformers_and_opened_here(pair, tmp_path):
    ours, theirs = pair
    theirs.save_pretrained(tmp_path)
    assert (tmp_path / "chat_template.jinja").is_file()
    again = load_hub_tokenizer(tmp_path)
    assert again.apply_chat_template([USER], tokenize=False) == ours.apply_chat_template([USER], tokenize=False)
    again.save(tmp_path / "ours")
    opened = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert opened.chat_template == theirs.chat_template
