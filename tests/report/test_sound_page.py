"""Images of recordings, and recordings on a page."""

import base64
import io
import wave

import numpy as np
import pytest

from flax_transformer.report import Report
from flax_transformer.report.audio_figure import audio_figure, pixels_of, spectrum_image
from flax_transformer.report.page import render
from flax_transformer.report.sample import read_media, save_audio, save_image


def test_a_figure_has_the_sound_above_and_what_is_made_of_it_below_at_the_same_seconds():
    shares = np.linspace(0, 1, 10).reshape(2, 5)
    figure = audio_figure(np.zeros((8, 40)), 2.0, ("one", "$two"), shares, "probability")
    above, below = figure.axes
    assert above.get_images()[0].get_extent()[:2] == [0, 2.0] == below.get_images()[0].get_extent()[:2]
    np.testing.assert_array_equal(below.get_images()[0].get_array(), shares)
    assert [label.get_text() for label in below.get_yticklabels()] == ["one", "$two"]
    pixels = pixels_of(figure)
    assert pixels.dtype == np.uint8
    assert pixels.shape[2] == 3
    assert len(audio_figure(np.zeros((8, 40)), 1.0).axes) == 1


def test_every_row_has_its_name():
    with pytest.raises(ValueError, match="there must be a row of weights for each name, got 3 and 2"):
        audio_figure(np.zeros((2, 9)), 1.0, ("a", "b"), np.zeros((3, 4)))


def test_low_tones_are_at_the_bottom_and_silence_is_drawn():
    picture = spectrum_image(np.array([[1.0, 1.0], [0.0, 0.0]]))
    assert picture.shape == (4, 4)
    assert picture[0].max() == 0
    assert picture[-1].min() == 255
    assert not spectrum_image(np.full((3, 3), -1.5)).any()


def test_a_sound_is_kept_as_it_is_and_played_by_the_page(tmp_path):
    samples = np.random.default_rng(0).uniform(-1, 1, 400).astype(np.float32)
    place = save_audio(tmp_path, "7", samples, 8_000)
    url = read_media(tmp_path, place)
    with wave.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))) as file:
        assert file.getframerate() == 8_000
        kept = np.frombuffer(file.readframes(400), "<i2") / 32_767
    np.testing.assert_allclose(kept, samples, atol=1e-4)
    picture = read_media(tmp_path, save_image(tmp_path, "7", np.zeros((4, 4), np.uint8)))
    page = render(Report(title="run", samples=[{"picture": picture, "audio": url, "source": "7", "wide": True}]))
    assert url in page
    assert "media-src data:" in page


def test_what_is_no_sound_is_not_shown(tmp_path):
    (tmp_path / "samples").mkdir()
    (tmp_path / "samples" / "1.wav").write_bytes(b"<script>")
    (tmp_path / "other.wav").write_bytes(b"RIFF")
    for place in ("samples/1.wav", "samples/2.wav", "other.wav", "../other.wav", 3):
        assert read_media(tmp_path, place) is None
