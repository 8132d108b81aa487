"""Options of image processors of every kind, and images of every mode."""

import numpy as np
import PIL.Image

CLUSTERS = [[round(float(x), 4) for x in row] for row in np.random.default_rng(0).uniform(-1, 1, (17, 3))]
SMALL = {"height": 24, "width": 24}
CONFIGS = {
    "vit": {"image_processor_type": "ViTImageProcessor", "size": SMALL},
    "vit_old": {
        "feature_extractor_type": "ViTFeatureExtractor", "size": 21, "resample": 3, "image_mean": [0.1, 0.2, 0.3],
    },
    "vit_fast": {
        "image_processor_type": "ViTImageProcessorFast", "size": [19, 30], "resample": 0, "do_convert_rgb": True,
    },
    "vit_crop": {
        "image_processor_type": "ViTImageProcessor", "size": {"shortest_edge": 25}, "crop_size": 31, "resample": 1,
        "do_center_crop": True, "do_convert_rgb": True, "rescale_factor": 0.00784313725490196,
    },
    "vit_as_it_is": {
        "image_processor_type": "ViTImageProcessor", "size": 24, "resample": 5, "do_rescale": False,
        "do_normalize": False,
    },
    "vit_one_mean": {"image_processor_type": "ViTImageProcessor", "size": 24, "image_mean": 0.4, "image_std": 0.3},
    "vit_pad": {
        "image_processor_type": "ViTImageProcessor", "size": {"max_height": 30, "max_width": 41}, "do_pad": True,
        "pad_size": {"height": 45, "width": 47}, "do_convert_rgb": True,
    },
    "deit": {"image_processor_type": "DeiTImageProcessor", "size": 29, "crop_size": {"height": 24, "width": 20}},
    "pvt": {"image_processor_type": "PvtImageProcessor", "size": SMALL, "resample": 4},
    "beit": {
        "image_processor_type": "BeitImageProcessor", "size": 30, "crop_size": 23, "do_center_crop": True,
        "do_reduce_labels": True,
    },
    "segformer": {"image_processor_type": "SegformerImageProcessor", "size": 29, "do_reduce_labels": True},
    "segformer_old": {"feature_extractor_type": "SegformerFeatureExtractor", "size": {"height": 21, "width": 34}},
    "imagegpt": {"image_processor_type": "ImageGPTImageProcessor", "size": 13, "clusters": CLUSTERS},
    "imagegpt_pixels": {"image_processor_type": "ImageGPTImageProcessor", "size": 13, "do_color_quantize": False},
    "convnext": {"image_processor_type": "ConvNextImageProcessor", "size": {"shortest_edge": 28}, "crop_pct": 0.875},
    "convnext_pct": {"feature_extractor_type": "ConvNextFeatureExtractor", "size": 33, "crop_pct": 0.95, "resample": 2},
    "convnext_large": {"image_processor_type": "ConvNextImageProcessor", "size": 384},
    "bit": {"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 26}, "crop_size": SMALL},
    "bit_odd": {"image_processor_type": "BitImageProcessor", "size": 27, "crop_size": {"height": 33, "width": 22}},
    "clip": {"image_processor_type": "CLIPImageProcessor", "size": 26, "crop_size": 26, "do_convert_rgb": None},
    "clip_old": {"feature_extractor_type": "CLIPFeatureExtractor", "size": 22, "crop_size": 22, "resample": 3},
    "clip_only_crop": {
        "image_processor_type": "CLIPImageProcessor", "do_resize": False, "crop_size": {"height": 37, "width": 36},
    },
    "blip": {"image_processor_type": "BlipImageProcessor", "size": {"height": 22, "width": 31}},
    "siglip": {"image_processor_type": "SiglipImageProcessor", "size": {"height": 31, "width": 17}},
    "siglip2": {"image_processor_type": "Siglip2ImageProcessor", "patch_size": 5, "max_num_patches": 37},
    "siglip2_fast": {
        "image_processor_type": "Siglip2ImageProcessorFast", "patch_size": 8, "max_num_patches": 16, "resample": 3,
        "do_convert_rgb": True, "image_mean": [0.1, 0.2, 0.3],
    },
    "qwen2_vl": {
        "image_processor_type": "Qwen2VLImageProcessor", "min_pixels": 400, "max_pixels": 3_000, "patch_size": 5,
    },
    "qwen2_vl_fast": {
        "image_processor_type": "Qwen2VLImageProcessorFast", "size": {"shortest_edge": 100, "longest_edge": 900},
        "patch_size": 3, "merge_size": 3, "temporal_patch_size": 1, "resample": 2, "image_std": [0.1, 0.2, 0.3],
    },
    "videomae": {"image_processor_type": "VideoMAEImageProcessor", "size": {"shortest_edge": 26}, "crop_size": SMALL},
    "videomae_old": {"feature_extractor_type": "VideoMAEFeatureExtractor", "size": 31, "crop_size": 37},
    "vivit": {"image_processor_type": "VivitImageProcessor", "size": {"shortest_edge": 30}, "crop_size": SMALL},
    "vivit_share": {
        "image_processor_type": "VivitImageProcessor", "size": {"height": 19, "width": 30}, "do_center_crop": False,
        "offset": False, "rescale_factor": 1 / 255,
    },
    "vilt": {"image_processor_type": "ViltImageProcessor", "size": 44, "size_divisor": 2, "do_convert_rgb": True},
    "vilt_old": {
        "feature_extractor_type": "ViltFeatureExtractor", "size": {"shortest_edge": 30}, "size_divisor": 1,
        "resample": 2, "do_convert_rgb": True,
    },
    "detr": {
        "image_processor_type": "DetrImageProcessor", "size": {"shortest_edge": 30, "longest_edge": 50},
        "do_convert_rgb": True,
    },
    "detr_old": {
        "feature_extractor_type": "DetrFeatureExtractor", "size": 31, "max_size": 40, "format": "coco_detection",
    },
    "detr_square": {
        "image_processor_type": "DetrImageProcessor", "size": {"height": 30, "width": 20}, "pad_size": 37,
        "do_convert_rgb": True,
    },
    "detr_no_pad": {
        "image_processor_type": "DetrImageProcessor", "size": SMALL, "pad_and_return_pixel_mask": False,
        "do_convert_rgb": True,
    },
    "mask2former": {
        "image_processor_type": "Mask2FormerImageProcessor", "size": {"shortest_edge": 30, "longest_edge": 50},
        "size_divisor": 8, "do_convert_rgb": True, "ignore_index": 255, "num_labels": 150,
    },
    "mask2former_old": {
        "feature_extractor_type": "Mask2FormerFeatureExtractor", "size": 31, "max_size": 40, "size_divisor": 0,
    },
    "mask2former_square": {
        "image_processor_type": "Mask2FormerImageProcessorFast", "size": {"height": 37, "width": 24}, "pad_size": 64,
        "do_convert_rgb": True, "resample": 3,
    },
}  # fmt: skip
MODES = ("RGB", "L", "LA", "P", "RGBA", "CMYK", "1", "I;16", "F", "RGB", "PA", "I", "YCbCr", "HSV")


def picture(seed):
    """Draw an image of an odd size in one of the modes, smooth in parts."""
    rng = np.random.default_rng(seed)
    mode = MODES[seed % len(MODES)]
    width, height = rng.integers(1, 90, 2) if seed % 7 else (int(rng.integers(1, 5)), int(rng.integers(30, 60)))
    rough = rng.integers(0, 256, (max(height // 3, 1), max(width // 3, 1), 4), np.uint8)
    image = PIL.Image.fromarray(rough).resize((int(width), int(height)), PIL.Image.Resampling.BILINEAR)
    if mode == "I;16":
        return PIL.Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * (1 + seed % 3))
    if mode == "F":
        return PIL.Image.fromarray(np.asarray(image.convert("L")) / np.float32(1 if seed % 3 else 255))
    if mode in ("LA", "RGBA", "PA"):
        return image.convert("LA").convert("PA") if mode == "PA" else image.convert(mode)
    image = image.convert("RGB").convert(mode)
    if mode == "P" and seed % 2:
        image.info["transparency"] = 3
    return image


def attempt(processor, images):
    """Call a processor; None where it refuses."""
    try:
        return {name: np.asarray(value) for name, value in processor(images, return_tensors="np").items()}
    except ValueError:
        return None


SEEN = (0, 3, 4)
"""Images of the golden file: RGB, a palette with a transparent colour, RGBA."""
