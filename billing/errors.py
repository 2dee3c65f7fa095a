"""What can go wrong with invoices.

ActRefused                  (ledger.errors)
├── AgreementRefused        a file of issuers, customers, taxes, items or bounds breaks a rule; the message names the place
├── IssueRefused            a document cannot be issued; the message says why
│   └── FoldDiffers         quantities times rates are not what the entries were charged
├── VoidRefused             a document cannot be voided
├── CreditRefused           a credit note breaks a rule
├── DocumentNotPrintable    a document has what no font or language of ours can print
└── ExportRefused           an export would not say what the documents say
"""

from decimal import Decimal

from ledger.errors import ActRefused


class AgreementRefused(ActRefused):
    """A file of who issues, who pays and what is agreed breaks a rule; nothing of it is kept."""


class IssueRefused(ActRefused):
    """A document cannot be issued; nothing of it is kept."""


class FoldDiffers(IssueRefused):
    """The lines of a tenant's month are not what its entries were charged."""

    def __init__(self, tenant_id: str, currency: str, model: str | None, rest: Decimal) -> None:
        self.tenant_id, self.currency, self.model, self.rest = tenant_id, currency, model, rest
        super().__init__(
            f"tenant {tenant_id}: quantities times rates of {model or 'what has no model'} differ from its charges by"
            f" {rest:f} {currency}"
        )


class VoidRefused(ActRefused):
    """A document cannot be voided; nothing was changed."""


class CreditRefused(ActRefused):
    """A credit note breaks a rule; nothing of it is kept."""


class DocumentNotPrintable(ActRefused):
    """A document has what no font or language of ours can print; nothing is written."""


class ExportRefused(ActRefused):
    """An export would not say what the documents say; nothing is written."""
