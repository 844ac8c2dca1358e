"""`python -m firstlight`, the same as `firstlight`."""

from firstlight.cli import main

raise SystemExit(main())
