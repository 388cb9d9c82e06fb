"""`python -m mocha_stream`."""

import sys

from .cli import main

sys.exit(main())
