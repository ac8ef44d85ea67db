"""Every bad file is made here, small and real, and must give one line that names it."""

from __future__ import annotations

import gzip
import os
import struct
import sys
import wave
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rf._errors import UserError
from rf.data import open_dataset
from rf.data.numbers import min_ctc_frames
from rf.data.resample import resample, resampled_length
from rf.data.transcripts import normalize_text, read_transcripts

pytestmark = pytest.mark.needs("soundfile")


def write_wav(path: Path, samples: np.ndarray, rate: int = 8000) -> Path:
    """16 bit PCM; ``samples`` is ``(T,)`` or ``(T, channels)``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1 if samples.ndim == 1 else samples.shape[1])
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((samples * 32767).astype("<i2").tobytes())
    return path


def tone(num_samples: int, hz: float = 300.0, rate: int = 8000) -> np.ndarray:
    return 0.5 * np.sin(2 * np.pi * hz * np.arange(num_samples) / rate)


@pytest.fixture
def corpus(tmp_path: Path) -> tuple[Path, Path]:
    """(folder, transcripts) of three good files, one of them in a sub-folder, and a beep."""
    folder = tmp_path / "wavs"
    write_wav(folder / "b.wav", tone(900))
    write_wav(folder / "a.wav", tone(800))
    write_wav(folder / "digits" / "1.wav", tone(400))
    write_wav(folder / "beep.wav", tone(100))
    transcripts = tmp_path / "t.txt"
    transcripts.write_text("; prompts\n\nb: B, it's 2!\na: Hello  World.\ndigits/1: one\nbeep: [beep]\n")
    return folder, transcripts


def error_of(folder: Path, transcripts: Path, load: bool = False) -> str:
    with pytest.raises(UserError) as info:
        dataset = open_dataset(folder, transcripts=transcripts)
        if load:
            for i in range(len(dataset)):
                dataset[i]
    message = str(info.value)
    assert "\n" not in message
    return message


def test_reads_examples_sorted_by_name(corpus: tuple[Path, Path]) -> None:
    folder, transcripts = corpus
    dataset = open_dataset(folder, transcripts=transcripts)
    assert dataset.names == ["a", "b", "digits/1"]
    assert (dataset.kind, dataset.sampling_rate, dataset.feature_dim) == ("audio", 8000, None)
    assert dataset.lengths.tolist() == [800, 900, 400]
    assert dataset.notices == []
    example = dataset[1]
    assert (example.inputs.dtype, example.targets.dtype) == (np.float32, np.int32)
    np.testing.assert_allclose(example.inputs, tone(900), atol=1e-4)
    assert [dataset.labels_to_text(dataset[i].targets) for i in range(3)] == ["hello world", "b it's 2", "one"]


def test_vocabulary_is_that_of_all_speech_sorted(corpus: tuple[Path, Path]) -> None:
    folder, transcripts = corpus
    expected = sorted(set("hello world" + "b it's 2" + "one"))
    assert open_dataset(folder, transcripts=transcripts).vocab == expected
    assert open_dataset(folder, transcripts=transcripts, max_sequences=1).vocab == expected


def test_selection(corpus: tuple[Path, Path]) -> None:
    folder, transcripts = corpus
    assert open_dataset(folder, transcripts=transcripts, max_seconds=0.1).names == ["a", "digits/1"]
    assert open_dataset(folder, transcripts=transcripts, max_seconds=0.1, max_sequences=1).names == ["a"]
    with pytest.raises(UserError, match=r"wavs: none of its 3 wavs is at most 0\.01 s long.*0\.05 s"):
        open_dataset(folder, transcripts=transcripts, max_seconds=0.01)


def test_given_vocabulary(corpus: tuple[Path, Path]) -> None:
    folder, transcripts = corpus
    vocab = [*"zyx", *open_dataset(folder, transcripts=transcripts).vocab]
    dataset = open_dataset(folder, transcripts=transcripts, vocab=vocab)
    assert dataset.vocab == vocab
    assert dataset.labels_to_text(dataset[0].targets) == "hello world"
    vocab.remove("w")
    with pytest.raises(UserError, match=r"t\.txt: the text of 'a' has the character 'w'"):
        open_dataset(folder, transcripts=transcripts, vocab=vocab)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.tsv", "a\thello: world\nb\tx\ndigits/1\tone\nbeep\t[beep]\n"),
        ("t.txt", "name\ttext\na\thello: world\nb\tx\ndigits/1\tone\nbeep\t[beep]\n"),
        ("t.txt", "./a.wav: hello: world\r\nb.WAV:x\r\ndigits/1.wav:\tone\r\nbeep: [beep]\r\n"),
        ("t.txt", "\ufeffa: hello world\nb: x\ndigits/1: one\nbeep: [beep]"),
    ],
)
@pytest.mark.parametrize("compress", [False, True])
def test_transcript_formats(corpus: tuple[Path, Path], name: str, text: str, compress: bool) -> None:
    data = text.encode("utf-8")
    path = corpus[1].parent / (name + ".gz" if compress else name)
    path.write_bytes(gzip.compress(data) if compress else data)
    assert read_transcripts(path) == {"a": "hello world", "b": "x", "digits/1": "one", "beep": ""}
    assert len(open_dataset(corpus[0], transcripts=path)) == 3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("That's THREE  (note) [x] <y>!", "that's three"),
        ("dash [-]", "dash"),
        ("Call-Forward on 2 A.M.", "call forward on 2 a m"),
        ("don\u2019t", "don't"),
        ("Z\u00dcRICH, cafe\u0301", "z\u00fcrich caf\u00e9"),
        ("\u041f\u0440\u0438\u0432\u0435\u0442!", "\u043f\u0440\u0438\u0432\u0435\u0442"),
        ("[a [b]", ""),
    ],
)
def test_normalize_text(text: str, expected: str) -> None:
    assert normalize_text(text) == expected


# Bad wavs. Each function spoils a.wav of the corpus; the error must name it and hold the given words.


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:500])


def _cut_header(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:30])


def _not_a_wav(path: Path) -> None:
    path.write_bytes(b"ID3\x04" + bytes(1000))


def _text_file(path: Path) -> None:
    path.write_text("hi")


def _patch_fmt(offset: int, fmt: str, value: int) -> Callable[[Path], None]:
    def patch(path: Path) -> None:
        data = bytearray(path.read_bytes())
        assert data[12:16] == b"fmt "
        struct.pack_into(fmt, data, 20 + offset, value)
        path.write_bytes(data)

    return patch


def _broken_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere.wav")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        pytest.param(lambda p: p.write_bytes(b""), "empty file (0 bytes)", id="empty"),
        pytest.param(lambda p: write_wav(p, tone(0)), "no audio (0 samples)", id="no samples"),
        pytest.param(_truncate, "truncated: its header promises 1600 bytes of audio, 456 are there", id="truncated"),
        pytest.param(_cut_header, "truncated: ends before its audio data", id="cut header"),
        pytest.param(_not_a_wav, "not a wav file (starts with b'ID3\\x04'", id="mp3"),
        pytest.param(_text_file, "not a wav file (starts with b'hi'", id="short text"),
        pytest.param(lambda p: write_wav(p, np.zeros((50, 2))), "2 channels, mono is needed", id="stereo"),
        pytest.param(_patch_fmt(0, "<H", 0x11), "compressed (wav encoding 0x11)", id="adpcm"),
        pytest.param(_patch_fmt(4, "<I", 0), "0 Hz", id="no sampling rate"),
        pytest.param(_patch_fmt(12, "<H", 0), "0 bytes per sample", id="no sample size"),
        pytest.param(_broken_link, "cannot be read (No such file", id="broken link"),
    ],
)
def test_bad_wav(corpus: tuple[Path, Path], spoil: Callable[[Path], None], words: str) -> None:
    folder, transcripts = corpus
    spoil(folder / "a.wav")
    message = error_of(folder, transcripts)
    assert message.startswith(f"{folder / 'a.wav'}: ")
    assert words in message


def test_every_cut_of_a_wav_is_an_error(corpus: tuple[Path, Path]) -> None:
    folder, transcripts = corpus
    whole = write_wav(folder / "a.wav", tone(8)).read_bytes()
    for size in range(len(whole)):
        (folder / "a.wav").write_bytes(whole[:size])
        assert str(folder / "a.wav") in error_of(folder, transcripts)
    (folder / "a.wav").write_bytes(whole + b"LIST\x04\x00\x00\x00more")
    assert open_dataset(folder, transcripts=transcripts)[0].inputs.shape == (8,)


def test_chunks_before_the_audio_are_skipped(corpus: tuple[Path, Path]) -> None:
    folder, transcripts = corpus
    data = (folder / "a.wav").read_bytes()
    (folder / "a.wav").write_bytes(data[:12] + b"LIST\x03\x00\x00\x00abc\x00" + data[12:])
    np.testing.assert_allclose(open_dataset(folder, transcripts=transcripts)[0].inputs, tone(800), atol=1e-4)


@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ALAW", "ULAW"])
def test_sample_formats(corpus: tuple[Path, Path], subtype: str) -> None:
    import soundfile

    folder, transcripts = corpus
    soundfile.write(folder / "a.wav", tone(800), 8000, subtype=subtype)
    example = open_dataset(folder, transcripts=transcripts)[0]
    np.testing.assert_allclose(example.inputs, tone(800), atol=0.03)


def test_samples_that_are_not_finite(corpus: tuple[Path, Path]) -> None:
    import soundfile

    folder, transcripts = corpus
    soundfile.write(folder / "a.wav", np.array([0.0, np.nan]), 8000, subtype="FLOAT")
    assert error_of(folder, transcripts, load=True) == (
        f"{folder / 'a.wav'}: has samples that are NaN or infinite; write it again"
    )


def test_wav_that_changes_after_opening(corpus: tuple[Path, Path]) -> None:
    folder, transcripts = corpus
    dataset = open_dataset(folder, transcripts=transcripts)
    write_wav(folder / "a.wav", tone(10))
    with pytest.raises(UserError, match=r"a\.wav: 10 samples decoded, 800 expected"):
        dataset[0]
    (folder / "a.wav").unlink()
    with pytest.raises(UserError, match=r"a\.wav: cannot be decoded"):
        dataset[0]


def test_transcript_without_wav(corpus: tuple[Path, Path]) -> None:
    folder, transcripts = corpus
    (folder / "a.wav").unlink()
    message = error_of(folder, transcripts)
    assert message.startswith(f"transcript 'a' has no wav file under {folder}: add a.wav")
    assert "--skip-unmatched" in message
    dataset = open_dataset(folder, transcripts=transcripts, skip_unmatched=True)
    assert dataset.names == ["b", "digits/1"]
    assert dataset.notices == ["left out 1 transcripts without wav file, 'a' for instance"]


def test_wav_without_transcript(corpus: tuple[Path, Path]) -> None:
    folder, transcripts = corpus
    write_wav(folder / "c.wav", tone(10))
    write_wav(folder / "d.wav", tone(10))
    message = error_of(folder, transcripts)
    assert message.startswith(f"{folder / 'c.wav'} has no transcript in {transcripts} (and 1 more): ")
    assert "--skip-unmatched" in message
    dataset = open_dataset(folder, transcripts=transcripts, skip_unmatched=True)
    assert dataset.names == ["a", "b", "digits/1"]
    assert dataset.notices == ["left out 2 wavs without transcript, 'c' for instance"]


def test_note_without_wav_is_ignored(corpus: tuple[Path, Path]) -> None:
    folder, transcripts = corpus
    (folder / "beep.wav").write_bytes(b"")
    assert len(open_dataset(folder, transcripts=transcripts)) == 3
    (folder / "beep.wav").unlink()
    assert len(open_dataset(folder, transcripts=transcripts)) == 3


@pytest.mark.parametrize(
    ("lines", "forgiven"),
    [
        ("a: please try again\nb: x\nold: Please, try again!\n", True),
        ("a: try again\nb: x\nold: try again\n", False),
        ("a: please try again\nb: please try again\nold: please try again\n", False),
        ("a: x\nb: y\nold: please try again\nolder: please try again\n", False),
    ],
)
def test_renamed_prompt_without_wav(corpus: tuple[Path, Path], lines: str, forgiven: bool) -> None:
    folder, transcripts = corpus
    transcripts.write_text(lines + "digits/1: one\nbeep: [beep]\n")
    if forgiven:
        dataset = open_dataset(folder, transcripts=transcripts)
        assert dataset.names == ["a", "b", "digits/1"]
        (notice,) = dataset.notices
        assert "'old' has no wav file" in notice and "'a' has the same text" in notice
    else:
        assert error_of(folder, transcripts).startswith("transcript 'old' has no wav file")


def test_names_that_start_from_a_sub_folder(corpus: tuple[Path, Path]) -> None:
    folder, transcripts = corpus
    assert "there is wavs/b.wav: give the folder that names start from" in error_of(folder.parent, transcripts)


def test_nothing_matches(corpus: tuple[Path, Path]) -> None:
    folder, transcripts = corpus
    transcripts.write_text("x: y\n")
    with pytest.raises(UserError, match="no transcript in .* has a wav file"):
        open_dataset(folder, transcripts=transcripts, skip_unmatched=True)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"a: x\nb: y\na: z\n", "line 3: 'a' was given on line 1 already"),
        (b"a: x\na.wav: y\n", "line 2: 'a' was given on line 1 already"),
        (b"a: x\nb y\n", "line 2: expected 'name: text' or 'name<TAB>text', got 'b y'"),
        (b"a: x\n: y\n", "line 2: no name"),
        (b"a: x\nb: \n", "line 2: 'b' has no text ('')"),
        (b"a: x\nb: ...\n", "line 2: 'b' has no text ('...')"),
        (b"a: x\nb: caf\xe9\n", "line 2: byte 0xe9 is not UTF-8"),
        (b"; nothing\n", "no entries"),
        (b"", "no entries"),
        (b"a: [x]\n", "no entry is speech"),
        (gzip.compress(b"a: x\n" * 100)[:-12], "damaged or not gzip"),
    ],
)
def test_bad_transcripts(corpus: tuple[Path, Path], data: bytes, words: str) -> None:
    folder, transcripts = corpus
    transcripts.write_bytes(data)
    message = error_of(folder, transcripts)
    assert message.startswith(f"transcripts {transcripts}")
    assert words in message


def test_gz_that_is_not_gzip(corpus: tuple[Path, Path]) -> None:
    path = corpus[1].with_suffix(".gz")
    path.write_text("a: x\n")
    assert error_of(corpus[0], path).startswith(f"transcripts {path}: damaged or not gzip")


def test_missing_paths(corpus: tuple[Path, Path], tmp_path: Path) -> None:
    folder, transcripts = corpus
    assert error_of(folder, tmp_path / "no.txt").startswith(f"transcripts {tmp_path / 'no.txt'}: cannot be read")
    assert error_of(tmp_path / "no", transcripts).startswith(f"{tmp_path / 'no'}: no such directory")
    assert error_of(transcripts, transcripts).startswith(f"{transcripts}: not a directory")
    (tmp_path / "void").mkdir()
    assert error_of(tmp_path / "void", transcripts).startswith(f"{tmp_path / 'void'}: no wav files")
    with pytest.raises(UserError, match="wavs: the transcripts are missing"):
        open_dataset(folder)
    with pytest.raises(UserError, match="nonsense: no such directory"):
        open_dataset("nonsense")


def test_two_wavs_of_one_name(corpus: tuple[Path, Path]) -> None:
    folder, transcripts = corpus
    write_wav(folder / "a.WAV", tone(10))
    if len(os.listdir(folder)) == 4:
        pytest.skip("this file system does not tell a.wav from a.WAV")
    assert "have the same name 'a'" in error_of(folder, transcripts)


def test_links_are_followed_once(corpus: tuple[Path, Path]) -> None:
    folder, transcripts = corpus
    (folder / "digits" / "up").symlink_to(folder)
    (folder.parent / "link").symlink_to(folder)
    assert len(open_dataset(folder.parent / "link", transcripts=transcripts)) == 3


def test_without_soundfile(corpus: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)
    assert "pip install rf-eager[audio]" in error_of(*corpus)


def test_mixed_sampling_rates(corpus: tuple[Path, Path]) -> None:
    folder, transcripts = corpus
    write_wav(folder / "b.wav", tone(1001, rate=16000), rate=16000)
    dataset = open_dataset(folder, transcripts=transcripts)
    assert dataset.sampling_rate == 8000
    assert dataset.lengths.tolist() == [800, 501, 400]
    assert "resampled to 8000 Hz" in dataset.notices[0]
    assert [len(dataset[i].inputs) for i in range(3)] == [800, 501, 400]
    np.testing.assert_allclose(dataset[1].inputs[50:-50], tone(501)[50:-50], atol=2e-3)
    # One file of each rate: a tie, and the lower one is taken.
    write_wav(folder / "a.wav", tone(800, rate=16000), rate=16000)
    write_wav(folder / "digits" / "1.wav", tone(800, rate=11025), rate=11025)
    assert open_dataset(folder, transcripts=transcripts, max_sequences=2).sampling_rate == 16000
    assert open_dataset(folder, transcripts=transcripts, sampling_rate=22050)[0].inputs.shape == (1103,)
    write_wav(folder / "a.wav", tone(800), rate=8000)
    assert open_dataset(folder, transcripts=transcripts).sampling_rate == 8000


@pytest.mark.parametrize(
    ("rate", "new_rate"), [(16000, 8000), (8000, 16000), (44100, 8000), (11025, 16000), (8000, 7999)]
)
def test_resample_keeps_what_both_rates_can_hold(rate: int, new_rate: int) -> None:
    for hz in (100.0, 1000.0, 3000.0):
        out = resample(tone(rate // 2, hz, rate).astype(np.float32), rate, new_rate)
        assert out.dtype == np.float32
        assert len(out) == resampled_length(rate // 2, rate, new_rate)
        expected = tone(len(out), hz, new_rate)
        np.testing.assert_allclose(out[200:-200], expected[200:-200], atol=2e-3)


def test_resample_removes_what_the_new_rate_cannot_hold() -> None:
    out = resample(tone(16000, 6000.0, 16000).astype(np.float32), 16000, 8000)
    assert np.abs(out[200:-200]).max() < 1e-3


def test_resample_of_very_short_audio() -> None:
    for num_samples in (0, 1, 2, 3):
        samples = np.ones(num_samples, np.float32)
        for rate, new_rate in ((8000, 16000), (16000, 8000), (44100, 8000)):
            assert len(resample(samples, rate, new_rate)) == resampled_length(num_samples, rate, new_rate)
    samples = np.ones(5, np.float32)
    assert resample(samples, 8000, 8000) is samples


def test_real_speech(asterisk: tuple[Path, Path]) -> None:
    """The prompts of Asterisk, as the Debian packages install them, without any option."""
    folder, transcripts = asterisk
    dataset = open_dataset(folder, transcripts=transcripts)
    assert len(dataset) > 500
    assert dataset.sampling_rate == 8000
    assert set("abcdefghijklmnopqrstuvwxyz' ") <= set(dataset.vocab)
    assert not set("[]().,") & set(dataset.vocab)
    text_of = {name: dataset.labels_to_text(dataset[i].targets) for i, name in enumerate(dataset.names)}
    assert text_of["digits/1"] == "one"
    assert text_of["letters/dash"] == "dash"
    assert text_of["agent-loggedoff"] == "agent logged off"
    for not_speech in ("beep", "tt-monkeys", "silence/1", "confbridge-join"):
        assert not_speech not in text_of
    # One prompt is listed under an older name too, without wav.
    assert all("has the same text" in notice for notice in dataset.notices)

    small = open_dataset(folder, transcripts=transcripts, max_seconds=3.0, max_sequences=40)
    assert len(small) == 40
    assert small.lengths.max() <= 3 * 8000
    for i in range(len(small)):
        example = small[i]
        assert len(example.inputs) == small.lengths[i]
        assert 0.01 < np.abs(example.inputs).max() <= 1.0
        # Frames of 10 ms, subsampled by 4, are enough for CTC.
        assert len(example.inputs) // 320 >= min_ctc_frames(example.targets.tolist())
