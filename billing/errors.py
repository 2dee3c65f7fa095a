"""What can go wrong with documents.

ActRefused                  (ledger.errors)
├── DocumentNotPrintable    a document has what no font or language of ours can print
└── ExportRefused           an export would not say what the documents say
"""

from ledger.errors import ActRefused


class DocumentNotPrintable(ActRefused):
    """A document has what no font or language of ours can print; nothing is written."""


class ExportRefused(ActRefused):
    """An export would not say what the documents say; nothing is written."""
