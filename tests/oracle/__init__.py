"""The oracle: what real providers answered, and what an independent library makes of it, held against our reading."""
