"""What can go wrong with budgets.

ActRefused              (ledger.errors)
└── BudgetRefused       a budget breaks a rule; the message says which
"""

from ledger.errors import ActRefused


class BudgetRefused(ActRefused):
    """A budget breaks a rule; nothing of it is kept."""
