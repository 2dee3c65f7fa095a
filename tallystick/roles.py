"""The names of the database's roles that our parts log in as; what each may do stands in `ledger/rights.md`."""

from typing import Final

WRITER: Final = "tallystick_writer"
API: Final = "tallystick_api"
OPERATOR: Final = "tallystick_operator"
ANALYST: Final = "tallystick_analyst"
ROLLUP: Final = "tallystick_rollup"
BILLING: Final = "tallystick_billing"
ROLES: Final = (WRITER, API, OPERATOR, ANALYST, ROLLUP, BILLING)
