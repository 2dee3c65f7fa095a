"""Documents as files: PDF for people, CSV and JSON for programs, FOCUS for those who compare bills."""
