"""Fixtures that more than one room needs; see tests/support for what stands behind them."""
