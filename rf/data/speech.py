"""Speech from a folder of wav files and a file of transcripts."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rf._errors import UserError
from rf.data.dataset import Dataset, Example, check_at_least
from rf.data.resample import resample, resampled_length
from rf.data.transcripts import read_transcripts
from rf.data.wav import import_soundfile, read_wav, read_wav_info

__all__ = ["SpeechDataset"]

# Two names for one text, one of them without wav: one prompt, renamed. Shorter texts repeat by chance ("yes", "one").
_MIN_WORDS_OF_RENAMED = 3


class SpeechDataset(Dataset):
    """Audio and characters, sorted by name.

    Transcripts and wavs must match one to one, by name: the path below ``folder``, without ``.wav``. What a transcript
    holds only a note for, such as ``[beep]``, is not speech: the entry is left out, and so is its wav, if there is one.
    One more thing is forgiven, with a notice: an entry without wav whose text, of at least three words, occurs exactly
    once more in the file, under the name of a wav that exists. It is the same prompt under an older name, and nothing
    is lost with it.

    See :mod:`rf.data.transcripts` for the format of the file and for what is kept of a text.

    Args:
        folder: searched with its sub-folders, links included, for files ``*.wav``, all mono.
        transcripts: the file of transcripts.
        sampling_rate: Hz, to which all audio is resampled. By default the rate that most files have (the lower one of a
            tie).
        vocab: the labels to use, those of a trained model for instance. By default the characters of all transcripts
            that are speech, sorted by code point, whatever ``max_seconds`` and ``max_sequences`` select.
        max_seconds: leaves out longer audio.
        max_sequences: keeps the first so many by name, after ``max_seconds``.
        skip_unmatched: leaves out transcripts without wav and wavs without transcript, with a notice, instead of
            raising.

    Raises:
        UserError: if a file is missing or bad, if nothing is selected, or if ``vocab`` lacks a character. All headers
            of the wavs that have a transcript are checked here, and the samples when an example is loaded.
    """

    kind = "audio"

    def __init__(
        self,
        folder: str | os.PathLike[str],
        transcripts: str | os.PathLike[str],
        *,
        sampling_rate: int | None = None,
        vocab: Sequence[str] | None = None,
        max_seconds: float | None = None,
        max_sequences: int | None = None,
        skip_unmatched: bool = False,
    ) -> None:
        check_at_least("sampling_rate", sampling_rate, 1000)
        check_at_least("max_seconds", max_seconds, 0.0)
        check_at_least("max_sequences", max_sequences, 1)
        import_soundfile()
        root = Path(folder)
        self.notices = []
        texts = read_transcripts(Path(transcripts))
        paths = _find_wavs(root)
        texts = self._matched(texts, paths, root, Path(transcripts), skip_unmatched)

        self.vocab = sorted({c for text in texts.values() for c in text}) if vocab is None else list(vocab)
        infos = {name: read_wav_info(paths[name]) for name in sorted(texts)}
        names = [
            name
            for name, info in infos.items()
            if max_seconds is None or info.num_samples <= max_seconds * info.sampling_rate
        ]
        if not names:
            shortest = min(info.num_samples / info.sampling_rate for info in infos.values())
            raise UserError(
                f"{root}: none of its {len(infos)} wavs is at most {max_seconds:g} s long, "
                f"the shortest has {shortest:.3g} s; choose a larger maximum"
            )
        self.names = names[:max_sequences]
        self.sampling_rate = sampling_rate or self._common_rate([infos[name].sampling_rate for name in self.names])
        self._paths = [paths[name] for name in self.names]
        self._infos = [infos[name] for name in self.names]
        self._targets = [_labels(texts[name], self.vocab, name, Path(transcripts)) for name in self.names]
        self.lengths = np.array(
            [resampled_length(info.num_samples, info.sampling_rate, self.sampling_rate) for info in self._infos],
            dtype=np.int64,
        )

    def __getitem__(self, index: int) -> Example:
        index = range(len(self))[index]
        assert self.sampling_rate is not None
        info = self._infos[index]
        samples = resample(read_wav(self._paths[index], info), info.sampling_rate, self.sampling_rate)
        return Example(self.names[index], samples, self._targets[index])

    def _matched(
        self, texts: dict[str, str], paths: dict[str, Path], root: Path, transcripts: Path, skip_unmatched: bool
    ) -> dict[str, str]:
        """The entries that are speech and have a wav."""
        speech = {name: text for name, text in texts.items() if text}
        if not speech:
            raise UserError(
                f"transcripts {transcripts}: no entry is speech, all are notes such as [beep]; write what is said"
            )
        without_text = sorted(name for name in paths if name not in texts)
        names_of = defaultdict(list)
        for name, text in speech.items():
            names_of[text].append(name)
        without_wav = []
        for name in speech:
            if name in paths:
                continue
            kept = _renamed_to(name, speech[name], names_of, paths)
            if kept is None:
                without_wav.append(name)
            else:
                self.notices.append(
                    f"transcript {name!r} has no wav file; left out, as {kept!r} has the same text and a wav"
                )
        how = "leave out what is unmatched with --skip-unmatched (skip_unmatched=True)"
        if without_wav and not skip_unmatched:
            name = without_wav[0]
            deeper = next((other for other in sorted(paths) if other.endswith("/" + name)), None)
            hint = f"; there is {deeper}.wav: give the folder that names start from" if deeper else ""
            raise UserError(
                f"transcript {name!r} has no wav file under {root}{_and_more(without_wav)}: "
                f"add {name}.wav, or {how}{hint}"
            )
        if without_text and not skip_unmatched:
            raise UserError(
                f"{paths[without_text[0]]} has no transcript in {transcripts}{_and_more(without_text)}: "
                f"add a line '{without_text[0]}: TEXT' ([noise] if it is not speech), or {how}"
            )
        matched = {name: text for name, text in speech.items() if name in paths}
        if not matched:
            raise UserError(
                f"no transcript in {transcripts} has a wav file under {root}: check that the two belong together"
            )
        if without_wav:
            self.notices.append(
                f"left out {len(without_wav)} transcripts without wav file, {without_wav[0]!r} for instance"
            )
        if without_text:
            self.notices.append(
                f"left out {len(without_text)} wavs without transcript, {without_text[0]!r} for instance"
            )
        return matched

    def _common_rate(self, rates: list[int]) -> int:
        counts = Counter(rates)
        rate = min(counts, key=lambda r: (-counts[r], r))
        if len(counts) > 1:
            found = ", ".join(f"{count} files with {r} Hz" for r, count in sorted(counts.items()))
            self.notices.append(f"sampling rates differ ({found}): all audio is resampled to {rate} Hz")
        return rate


def _find_wavs(root: Path) -> dict[str, Path]:
    """All wav files below ``root`` by name, the relative path without suffix, with ``/`` between its parts."""
    if not root.is_dir():
        problem = "not a directory" if root.exists() else "no such directory"
        raise UserError(f"{root}: {problem}; speech data is a directory of wav files")
    paths: dict[str, Path] = {}
    seen: set[str] = set()

    def fail(exc: OSError) -> None:
        raise UserError(f"{exc.filename}: cannot be read ({exc.strerror}); check its permissions") from exc

    for folder, sub_folders, files in os.walk(root, followlinks=True, onerror=fail):
        real = os.path.realpath(folder)
        if real in seen:
            # A link to a folder that was visited, maybe to one above: going on might never end.
            sub_folders.clear()
            continue
        seen.add(real)
        sub_folders.sort()
        for file in sorted(files):
            path = Path(folder, file)
            if path.suffix.lower() != ".wav":
                continue
            name = path.relative_to(root).with_suffix("").as_posix()
            if name in paths:
                raise UserError(
                    f"{paths[name]} and {path} have the same name {name!r}; rename or remove one of the two"
                )
            paths[name] = path
    if not paths:
        raise UserError(f"{root}: no wav files in it or its sub-folders; check the path")
    return paths


def _renamed_to(name: str, text: str, names_of: dict[str, list[str]], paths: dict[str, Path]) -> str | None:
    """The name with a wav that has the same ``text``, if that is the same prompt; else None."""
    others = [other for other in names_of[text] if other != name]
    if len(text.split()) < _MIN_WORDS_OF_RENAMED or len(others) != 1 or others[0] not in paths:
        return None
    return others[0]


def _labels(text: str, vocab: list[str], name: str, transcripts: Path) -> np.ndarray:
    index = {label: i for i, label in enumerate(vocab)}
    for c in text:
        if c not in index:
            raise UserError(
                f"transcripts {transcripts}: the text of {name!r} has the character {c!r}, "
                f"which is none of the {len(vocab)} labels of the model; train on it, or leave the entry out"
            )
    return np.array([index[c] for c in text], dtype=np.int32)


def _and_more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""
