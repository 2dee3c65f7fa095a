"""`python -m tallystick`: the command line without its installed name."""

import sys

from tallystick.cli import main

sys.exit(main())
