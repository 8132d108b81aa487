"""Data made by rule, the same wherever they are made: shapes to classify, detect, caption or ask about; moving shapes;
telephone tones; number words.

A config such as `LabelledImageData` opens a folder, or makes such data where none is named.
"""

from flax_transformer.data.synthetic.audio import DIGITS, AudioData, SpokenStringConfig, SpokenStringData, TouchTones
from flax_transformer.data.synthetic.moving_shape import ACTIONS, MovingShapes, VideoData
from flax_transformer.data.synthetic.number_words import (
    TASKS,
    Numbers,
    build_number_words,
    counting_texts,
    english,
    exercises,
    german,
    numbers,
    sums,
)
from flax_transformer.data.synthetic.shape import (
    SHAPES,
    DrawnShapes,
    LabelledImageData,
    SceneData,
    ShapeScenes,
    draw_shape,
)
from flax_transformer.data.synthetic.shape_caption import (
    ALL_COLOURS,
    COLOURS,
    CaptionedScenes,
    CaptionedShapes,
    SceneCaptions,
    ShapeCaptions,
    tell,
)
from flax_transformer.data.synthetic.shape_map import SceneMapData
from flax_transformer.data.synthetic.shape_pair import PaintedShapeData, ShapePairData, ShapeSetsData, SketchedShapes
from flax_transformer.data.synthetic.shape_question import ShapeQuestions, ShapeVQA
from flax_transformer.data.synthetic.shape_segment import HorizonScenes, SceneSegmentData

__all__ = [
    "ACTIONS",
    "ALL_COLOURS",
    "COLOURS",
    "DIGITS",
    "SHAPES",
    "TASKS",
    "AudioData",
    "CaptionedScenes",
    "CaptionedShapes",
    "DrawnShapes",
    "HorizonScenes",
    "LabelledImageData",
    "MovingShapes",
    "Numbers",
    "PaintedShapeData",
    "SceneCaptions",
    "SceneData",
    "SceneMapData",
    "SceneSegmentData",
    "ShapeCaptions",
    "ShapePairData",
    "ShapeQuestions",
    "ShapeScenes",
    "ShapeSetsData",
    "ShapeVQA",
    "SketchedShapes",
    "SpokenStringConfig",
    "SpokenStringData",
    "TouchTones",
    "VideoData",
    "build_number_words",
    "counting_texts",
    "draw_shape",
    "english",
    "exercises",
    "german",
    "numbers",
    "sums",
    "tell",
]
