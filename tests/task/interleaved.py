"""A tiny Qwen2-VL with a tokenizer of letters, its marks, a chat template and an image processor."""

import json

from flax_transformer import hub
from flax_transformer.models.multimodal.interleaved import InterleavedConfig
from flax_transformer.models.multimodal.qwen2_vl import qwen2_vl_text
from flax_transformer.models.vision.packed_vit import packed_vit
from flax_transformer.nn import Rotary, with_fields
from tests.task.checkpoints import save, tokenizer_files

MARKS = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|im_start|>", "<|im_end|>")
FIRST = 33
"""The id of the first of them."""
IMAGE = FIRST + 1
CONFIG = InterleavedConfig(
    vision=packed_vit(16, embed=16, heads=2, depth=1, inner=32, patch=4),
    text=with_fields(
        qwen2_vl_text(40, embed=16, inner=24, heads=2, kv_heads=1, depth=1), rotary=Rotary(sections=(1, 1, 2)),
        max_length=200, init_std=0.5,
    ),
    image_token=IMAGE,
)  # fmt: skip
PIXELS = {
    "image_processor_type": "Qwen2VLImageProcessor", "min_pixels": 64, "max_pixels": 400, "patch_size": 4,
}  # fmt: skip
TEMPLATE = """{% for message in messages %}<|im_start|>{{ message['role'] }} {% if message['content'] is string %}\
{{ message['content'] }}{% else %}{% for part in message['content'] %}{% if part['type'] == 'image' %}\
<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant {% endif %}"""


def interleaved(folder, *, template=TEMPLATE):
    """Save it into a folder."""
    import tokenizers

    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3, "video_token_id": 39}
    save(CONFIG, "Qwen2VLForConditionalGeneration", folder, **ids)
    files = tokenizer_files("$A", **({} if template is None else {"chat_template": template}))
    engine = tokenizers.Tokenizer.from_str(files["tokenizer.json"])
    engine.add_special_tokens([*MARKS])
    assert engine.token_to_id(MARKS[0]) == FIRST
    files["tokenizer.json"] = engine.to_str()
    for name, text in {**files, "preprocessor_config.json": json.dumps(PIXELS)}.items():
        (folder / name).write_text(text)
    return folder


def load(folder, **options):
    """Save it, and open it."""
    return hub.load(interleaved(folder, **options))
