"""``python -m service`` is ``groundrec``."""

from service.cli import main

if __name__ == "__main__":
    main()
