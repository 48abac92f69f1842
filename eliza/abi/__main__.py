"""`python -m eliza.abi`: what a host needs to know, as JSON."""

import json

from eliza.abi import describe

if __name__ == "__main__":
    print(json.dumps(describe()))
