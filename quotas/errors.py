"""What can go wrong with budgets.

ActRefused              (ledger.errors)
├── BudgetRefused       a budget breaks a rule; the message says which
├── AskRefused          an ask breaks a rule; the message names the field
├── GrantRefused        a grant or what is done to it breaks a rule
└── WebhookRefused      a receiver of webhooks, or what is done to it, breaks a rule
"""

from ledger.errors import ActRefused


class BudgetRefused(ActRefused):
    """A budget breaks a rule; nothing of it is kept."""


class AskRefused(ActRefused, ValueError):
    """An ask breaks a rule; nobody was asked."""

    def __init__(self, field: str, rule: str) -> None:
        self.field, self.rule = field, rule
        super().__init__(f"{field}: {rule}")


class GrantRefused(ActRefused):
    """A grant, or what is done to it, breaks a rule; nothing of it is kept."""


class WebhookRefused(ActRefused):
    """A receiver of webhooks, or what is done to it, breaks a rule; nothing of it is kept."""
