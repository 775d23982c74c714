"""`python -m ledger.rendering`; see `ledger.rendering.render`."""

import sys

from ledger.rendering.render import main

sys.exit(main(sys.argv[1:]))
