"""Lets `python -m eliza.cli` run the command."""

import sys

from eliza.cli import main

sys.exit(main())
