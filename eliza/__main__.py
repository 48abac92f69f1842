"""Lets `python -m eliza` run the command."""

import sys

from eliza.cli import main

sys.exit(main())
