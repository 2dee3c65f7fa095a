"""A document as PDF: set by Typst from `document.typ`, with fonts of our own, the same bytes for the same document."""

import json
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

import typst
from fontTools.ttLib import TTCollection, TTFont

from billing.documents import Document
from billing.errors import DocumentNotPrintable
from billing.exports.printed import printed, texts

_TEMPLATE: Final = Path(__file__).with_name("document.typ")
FONTS: Final = Path(__file__).parent.parent / "fonts"
"""Latin, Greek, Cyrillic, Devanagari, Arabic and simplified Chinese; see its README.md."""
_SUFFIXES: Final = frozenset({".ttf", ".otf", ".ttc", ".otc"})
# Marks that steer the line and have no picture: format characters, spaces, line ends.
_UNPRINTED: Final = frozenset({"Cf", "Zs", "Zl", "Zp"})
_NAMED_MAX: Final = 5
_STANDARD: Final = "a-2b"
"""For keeping: PDF/A-2b has all fonts in the file and asks nothing of the reader's machine."""


def to_pdf(document: Document, *, font_folders: Sequence[Path] = (), with_exact: bool = False) -> bytes:
    """Return a document as PDF/A-2b.

    Shape: one file; table heads on every page, subtotals carried, no row split. The bytes depend on the document, the
    fonts and the version of Typst alone, so that a hash of the file can be kept.
    Errors: DocumentNotPrintable naming each character that no font has, and where it stands.
    """
    content = printed(document, with_exact=with_exact)
    folders = (FONTS, *font_folders)
    _check_characters(texts(content), _characters(folders))
    made = _compiler(folders).compile(
        input=_TEMPLATE.read_bytes(),
        format="pdf",
        sys_inputs={"document": json.dumps(content, ensure_ascii=False)},
        pdf_standards=_STANDARD,
    )
    assert isinstance(made, bytes)
    return made


def _check_characters(printed_texts: Iterable[str], known: frozenset[int]) -> None:
    """Refuse texts with characters that would be printed as boxes, or with marks of control."""
    missing: dict[str, str] = {}
    for text in printed_texts:
        for mark in text:
            if ord(mark) not in known and unicodedata.category(mark) not in _UNPRINTED:
                missing.setdefault(mark, text)
    if missing:
        named = ", ".join(
            f"{unicodedata.name(mark, 'a character without a name')} (U+{ord(mark):04X}) in {text!r}"
            for mark, text in sorted(missing.items())[:_NAMED_MAX]
        )
        more = f", and {len(missing) - _NAMED_MAX} more" if len(missing) > _NAMED_MAX else ""
        raise DocumentNotPrintable(f"no font has {named}{more}; TALLYSTICK_FONTS names a folder of more fonts")


@lru_cache(maxsize=8)
def _characters(folders: tuple[Path, ...]) -> frozenset[int]:
    """Return the code points that a font of the folders has a glyph for."""
    known: set[int] = set()
    for path in _font_files(folders):
        faces = TTCollection(path, lazy=True).fonts if path.suffix in {".ttc", ".otc"} else [TTFont(path, lazy=True)]
        for face in faces:
            known.update(face.getBestCmap() or {})
            face.close()
    return frozenset(known)


def _font_files(folders: Iterable[Path]) -> list[Path]:
    found = []
    for folder in folders:
        if not folder.is_dir():
            raise DocumentNotPrintable(f"{folder} is not a folder of fonts")
        found += sorted(path for path in folder.rglob("*") if path.suffix.lower() in _SUFFIXES)
    return found


@lru_cache(maxsize=8)
def _compiler(folders: tuple[Path, ...]) -> typst.Compiler:
    """Return Typst with our fonts alone: what a machine has installed must not change a document."""
    return typst.Compiler(
        root=str(_TEMPLATE.parent),
        font_paths=typst.Fonts(
            include_system_fonts=False, include_embedded_fonts=False, font_paths=[str(folder) for folder in folders]
        ),
        ignore_system_fonts=True,
    )
