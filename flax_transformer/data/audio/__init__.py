"""Recordings: reading files, changing the rate, spectra; recordings of a folder, batches.

`SpeechData` reads what JSON lines tell of; `data.synthetic.AudioData` takes a folder of whichever form and gives an
`DataSet` of `Recordings`. All in NumPy.
"""

from flax_transformer.data.audio.decode import Waveform as Waveform
from flax_transformer.data.audio.decode import audio_size as audio_size
from flax_transformer.data.audio.decode import decode_audio as decode_audio
from flax_transformer.data.audio.decode import is_audio_name as is_audio_name
from flax_transformer.data.audio.decode import mono as mono
from flax_transformer.data.audio.open import SpeechData as SpeechData
from flax_transformer.data.audio.recording import AudioFiles as AudioFiles
from flax_transformer.data.audio.recording import InMemoryAudio as InMemoryAudio
from flax_transformer.data.audio.recording import Recordings as Recordings
from flax_transformer.data.audio.recording import load_audio as load_audio
from flax_transformer.data.audio.spectrum import log_mel as log_mel
from flax_transformer.data.audio.spectrum import mel_filters as mel_filters
from flax_transformer.data.audio.spectrum import resample as resample
from flax_transformer.data.audio.transform import CTCRows as CTCRows
from flax_transformer.data.audio.transform import Gain as Gain
from flax_transformer.data.audio.transform import MaskFrames as MaskFrames
from flax_transformer.data.audio.transform import MaskSamples as MaskSamples
from flax_transformer.data.audio.transform import Noise as Noise
from flax_transformer.data.audio.transform import ResampleAudio as ResampleAudio
from flax_transformer.data.audio.transform import Shift as Shift
from flax_transformer.data.audio.transform import SpectrogramRows as SpectrogramRows
from flax_transformer.data.audio.transform import SpeechSeq2SeqRows as SpeechSeq2SeqRows
from flax_transformer.data.audio.transform import Speed as Speed
from flax_transformer.data.audio.transform import Truncate as Truncate
from flax_transformer.data.audio.transform import WaveformRows as WaveformRows
