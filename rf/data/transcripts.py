"""Reading transcript files, and what of a text is speech.

A transcript file has one entry a line, ``name: text`` or ``name<TAB>text``, in UTF-8, plain or gzipped. Empty lines and
lines that start with ``;`` are skipped, and so is a first line ``name<TAB>text``. The name is the path of the wav below
the data folder, with or without ``.wav``. In a file called ``.tsv`` the separator is always the tab, elsewhere the
first tab or colon of the line.
"""

from __future__ import annotations

import gzip
import re
import unicodedata
import zlib
from pathlib import Path

from rf._errors import UserError

__all__ = ["normalize_text", "read_transcripts"]

_NOTE = re.compile(r"\[[^\]]*\]|\([^)]*\)|<[^>]*>")
_APOSTROPHES = str.maketrans({"\u2019": "'", "\u02bc": "'", "`": "'"})


def normalize_text(text: str) -> str:
    """The speech in ``text``: empty if there is none.

    Notes in [brackets], (parentheses) or <angles> are taken out: they describe sounds or spelling, nobody says them. Of
    the rest, letters are made lower case; letters with their accents, digits and apostrophes stay; all else separates
    words; words are separated by one space. Numerals are not spelled out.
    """
    text = unicodedata.normalize("NFC", _NOTE.sub(" ", text)).translate(_APOSTROPHES).lower()
    kept = (c if c == "'" or unicodedata.category(c)[0] in "LMN" else " " for c in text)
    return " ".join("".join(kept).split())


def read_transcripts(path: Path) -> dict[str, str]:
    """Reads a transcript file.

    Returns:
        normalized text of every name, in the order of the file; an empty text for entries that are notes only.

    Raises:
        UserError: if the file cannot be read or is not UTF-8, an entry has no separator, no name or no text, or a name
            occurs twice.
    """
    entries: dict[str, str] = {}
    line_numbers: dict[str, int] = {}
    is_tsv = path.name.lower().endswith((".tsv", ".tsv.gz"))
    separator = re.compile(r"\t" if is_tsv else r"[\t:]")
    for number, line in enumerate(re.split(r"\r?\n", _read_text(path)), start=1):
        if not line.strip() or line.startswith(";"):
            continue
        fields = separator.split(line, maxsplit=1)
        where = f"transcripts {path}, line {number}"
        if len(fields) != 2:
            wanted = "name<TAB>text" if is_tsv else "'name: text' or 'name<TAB>text'"
            raise UserError(f"{where}: expected {wanted}, got {_shorten(line)!r}")
        if not entries and [field.strip() for field in fields] == ["name", "text"] and "\t" in line:
            continue
        name = re.sub(r"^(\./)+|\.wav$", "", fields[0].strip(), flags=re.IGNORECASE)
        if not name:
            raise UserError(f"{where}: no name before the separator: expected 'name: text'")
        if name in entries:
            raise UserError(f"{where}: {name!r} was given on line {line_numbers[name]} already; remove one of the two")
        text = normalize_text(fields[1])
        if not text and not _NOTE.search(fields[1]):
            raise UserError(
                f"{where}: {name!r} has no text ({_shorten(fields[1].strip())!r}); "
                "write what is said, or a note such as [noise] if nothing is"
            )
        entries[name] = text
        line_numbers[name] = number
    if not entries:
        raise UserError(f"transcripts {path}: no entries; expected lines 'name: text' or 'name<TAB>text'")
    return entries


def _read_text(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as exc:
        raise UserError(f"transcripts {path}: cannot be read ({exc.strerror}); check the path") from exc
    if path.suffix.lower() == ".gz" or data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as exc:
            raise UserError(f"transcripts {path}: damaged or not gzip ({exc}); copy it again") from exc
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        # A byte order mark is not counted in the position of the error; it holds no newline.
        line = data.count(b"\n", 0, exc.start) + 1
        raise UserError(
            f"transcripts {path}, line {line}: byte 0x{exc.object[exc.start]:02x} is not UTF-8; "
            "convert the file, for instance with: iconv -f latin1 -t utf-8"
        ) from exc


def _shorten(text: str, length: int = 40) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."
