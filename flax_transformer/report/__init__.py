"""What runs look like: a page of one with its numbers, samples and attention, a page of several; figures of attention.

It knows no model and no task: it takes numbers and tokens. Nothing here imports matplotlib until a figure is made.
"""

from flax_transformer.report.attention import AttentionMaps, attention_figure, save_attention
from flax_transformer.report.image_attention import ImageAttention, ImageMaps, Scale, Tiling, image_attention_figure
from flax_transformer.report.page import Report, TextAttention, render, write_page
from flax_transformer.report.run import read_run

__all__ = [
    "AttentionMaps",
    "ImageAttention",
    "ImageMaps",
    "Report",
    "Scale",
    "TextAttention",
    "Tiling",
    "attention_figure",
    "image_attention_figure",
    "read_run",
    "render",
    "save_attention",
    "write_page",
]
